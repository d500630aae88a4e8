"""Log lines in vLLM's form: `(APIServer pid=N) INFO MM-DD HH:MM:SS [file.py:LINE] message`."""

import os
import sys
import time


class Log:
    """The log of one process. Lines go to stdout and progress to stderr, each in one write."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._prefix = f"({role} pid={os.getpid()}) "

    def after_fork(self, role: str) -> "Log":
        """The log of a child."""
        return Log(role)

    def info(self, where: str, message: str) -> None:
        """`where` is vLLM's own `file.py:LINE`."""
        self._line("INFO", where, message)

    def warning(self, where: str, message: str) -> None:
        self._line("WARNING", where, message)

    def error(self, where: str, message: str) -> None:
        """Each line of the message becomes a line of the log."""
        for part in message.splitlines():
            self._line("ERROR", where, part)

    def server(self, message: str) -> None:
        """A line in uvicorn's form."""
        _write(sys.stdout, f"{self._prefix}INFO:     {message}\n")

    def progress(self, text: str, *, end: bool) -> None:
        """A progress bar on stderr: it overwrites itself with a carriage return until the `end`."""
        _write(sys.stderr, f"\r{self._prefix}{text}" + ("\n" if end else ""))

    def trace(self, message: str) -> None:
        """The last lines of a Python traceback on stderr."""
        _write(sys.stderr, "".join(f"{self._prefix}{part}\n" for part in message.splitlines()))

    def _line(self, level: str, where: str, message: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        _write(sys.stdout, f"{self._prefix}{level} {stamp} [{where}] {message}\n")


def _write(stream: object, text: str) -> None:
    descriptor = 2 if stream is sys.stderr else 1
    data = text.encode()
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return  # nobody reads any more: an engine goes on without its log
