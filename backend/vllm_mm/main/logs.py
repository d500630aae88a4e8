"""What the processes of the server write to stderr."""

import logging
import sys


def log_to_stderr(level: str, form: str, who: str = "") -> None:
    """`form` is `text` or `json`; `who` is put in front of the names of loggers, to tell one process from another."""
    line = f"%(asctime)s %(levelname)-7s {who}%(name)s: %(message)s"
    if form == "json":
        line = f'{{"at":"%(asctime)s","level":"%(levelname)s","logger":"{who}%(name)s","message":"%(message)s"}}'
    logging.basicConfig(level=level.upper(), format=line, stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per health poll otherwise
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # a client's broken form is told to the client
