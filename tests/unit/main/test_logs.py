"""Lines of the server's own log."""

import json
import logging
import sys

import pytest
import structlog

from vllm_mm.main.logs import formatter


def record(message: str, *args: object, error: bool = False, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("vllm_mm.x").makeRecord(
        "vllm_mm.x", logging.WARNING, "f", 1, message, args, None, extra=extra
    )
    if error:
        try:
            raise ValueError("broken")
        except ValueError:
            made.exc_info = sys.exc_info()
    return made


def test_a_line_of_json_is_json_whatever_is_in_it() -> None:
    """Quotes, line ends and tracebacks too; one object a line."""
    line = formatter("json", "worker-1 ").format(record('it said "%s"', "a\nb", error=True, request_id="req_1"))
    assert "\n" not in line
    found = json.loads(line)
    assert found["message"] == 'it said "a\nb"'
    assert (found["level"], found["logger"], found["request_id"]) == ("warning", "worker-1 vllm_mm.x", "req_1")
    assert found["at"].endswith("Z")
    assert "ValueError: broken" in found["exception"]


def test_a_line_for_people() -> None:
    """Time, level, logger, message, and what belongs to it; a traceback stands below."""
    line = formatter("text").format(record("%d models", 2, request_id="req_1"))
    assert line[20:] == "WARNING vllm_mm.x: 2 models  request_id=req_1"
    head, *trace = formatter("text").format(record("oops", error=True)).splitlines()
    assert head.endswith("vllm_mm.x: oops")
    assert trace[0].startswith("Traceback")


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_is_bound_is_on_every_line(form: str) -> None:
    """As the id of a request to the admin API is, while it is answered."""
    with structlog.contextvars.bound_contextvars(request_id="mine"):
        assert "mine" in formatter(form).format(record("x"))
    assert "mine" not in formatter(form).format(record("x"))
