"""Log lines in vLLM's form: `(APIServer pid=N) INFO MM-DD HH:MM:SS [file.py:LINE] message`."""

import os
import time


class Log:
    """The log of one process. Lines go to stdout and progress to stderr, each in one write."""

    def __init__(self, role: str) -> None:
        self._prefix = f"({role} pid={os.getpid()}) "

    def note(self, where: str, message: str) -> None:
        """An INFO line; `where` is vLLM's own `file.py:LINE`."""
        self._line("INFO", where, message)

    def alarm(self, where: str, message: str) -> None:
        """An ERROR line for each line of the message."""
        for part in message.splitlines():
            self._line("ERROR", where, part)

    def server(self, message: str) -> None:
        """A line in uvicorn's form."""
        _write(1, f"INFO:     {message}\n")

    def progress(self, text: str, *, end: bool) -> None:
        """A progress bar on stderr: it overwrites itself with a carriage return until the `end`."""
        _write(2, f"\r{text}" + ("\n" if end else ""))

    def trace(self, message: str) -> None:
        """The last lines of a Python traceback on stderr."""
        _write(2, "".join(f"{self._prefix}{part}\n" for part in message.splitlines()))

    def _line(self, level: str, where: str, message: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        _write(1, f"{self._prefix}{level} {stamp} [{where}] {message}\n")


def _write(descriptor: int, text: str) -> None:
    data = text.encode()
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return  # nobody reads any more: an engine goes on without its log
