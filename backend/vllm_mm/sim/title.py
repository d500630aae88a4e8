"""Names of processes, as `ps` shows them."""

import os


def set_title(title: str, *, keep_environment: bool) -> None:
    """Rename this process.

    setproctitle writes over the memory of the environment, so that /proc/PID/environ is empty and no mark of a launch is
    found there, unless `SPT_NOENV` is set. vLLM does not set it.
    """
    if keep_environment:
        os.environ.setdefault("SPT_NOENV", "1")
    from setproctitle import setproctitle  # noqa: PLC0415 - it looks at the variable when it is first used

    setproctitle(title)
