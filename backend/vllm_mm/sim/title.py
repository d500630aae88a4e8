"""Names of processes, as `ps` shows them."""

import os


def set_title(title: str) -> None:
    """Rename this process, and leave its environment readable in /proc: a launch is known by its mark there."""
    os.environ.setdefault("SPT_NOENV", "1")  # else setproctitle overwrites the memory of the environment
    from setproctitle import setproctitle  # noqa: PLC0415 - it looks at the variable when it is first used

    setproctitle(title)
