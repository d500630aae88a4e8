"""The composition root. Importing it is cheap: the command line must answer quickly, a worker needs no command line, and only
`serve` needs it all."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_mm.cli.options import ServeOptions


def run() -> None:
    """The `vllm-mm` command."""
    from vllm_mm.cli.app import build  # noqa: PLC0415  # not for workers

    build(serve)()


def serve(options: "ServeOptions") -> int:
    """Run the server until it is told to stop; returns the exit code."""
    from vllm_mm.main.server import serve as run_server  # noqa: PLC0415  # half a second of imports, for this command only

    return run_server(options)
