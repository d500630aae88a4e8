"""What the processes of the server write to stderr: one line an event, for people or for collectors.

Modules log with the standard library, and say what belongs to a line in `extra`; structlog puts the line together. What is
bound in its context (`request_id`, while a request to the admin API is answered) is on every line that is written meanwhile.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Final

import structlog
from structlog.stdlib import ProcessorFormatter

if TYPE_CHECKING:
    from structlog.typing import Processor

_PLACES: Final = ("at", "level", "logger", "event")


def log_to_stderr(level: str, form: str, who: str = "") -> None:
    """`form` is `text` or `json`; `who` is put in front of the names of loggers, to tell one process from another."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form, who))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per health poll otherwise
    logging.getLogger("httpcore").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # a client's broken form is told to the client


def formatter(form: str, who: str = "") -> logging.Formatter:
    """Makes lines as `log_to_stderr` writes them."""

    def name(logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        structlog.stdlib.add_logger_name(logger, _method, event)
        event["logger"] = f"{who}{event['logger']}"
        return event

    json = form == "json"
    stamp = structlog.processors.TimeStamper(fmt="iso" if json else "%Y-%m-%d %H:%M:%S", utc=json, key="at")
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars, structlog.stdlib.add_log_level, name, structlog.stdlib.ExtraAdder(), stamp,
    ]  # fmt: skip
    last: list[Processor] = [_text]
    if json:
        last = [
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ]
    return ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.UnicodeDecoder(),
            *last,
        ],
    )


def _text(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """`2026-11-30 21:00:00 INFO    vllm_mm: message  request_id=req_1`, and a traceback below it."""
    stamp, level, logger, message = (event.pop(name, "") for name in _PLACES)
    trace = event.pop("exception", "")
    more = "".join(f"  {key}={value}" for key, value in event.items())
    line = f"{stamp} {str(level).upper():<7} {logger}: {message}{more}"
    return f"{line}\n{trace}" if trace else line
