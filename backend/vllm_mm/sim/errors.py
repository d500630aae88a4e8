"""Errors in the shapes that vLLM answers with."""

import contextlib
from collections.abc import Generator, Sized
from http import HTTPStatus
from typing import Any, cast


class ApiError(Exception):
    """An answer other than 200, in OpenAI's shape, or in Anthropic's."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

        self.anthropic = False

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        if self.anthropic:
            return {"type": "error", "error": {"type": self.kind, "message": self.message}}
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def unknown_model(name: str, aliases: tuple[str, ...] = ()) -> ApiError:
    """404; the valid aliases are named, but not by the pooling routes."""
    if not aliases:
        return ApiError(404, f"The model `{name}` does not exist.", "NotFoundError")
    return ApiError(
        404, f"The model `{name}` does not exist. Valid aliases: {', '.join(aliases)}.", "NotFoundError", "model"
    )


def invalid(
    field: str, message: str, value: object = None, kind: str = "value_error", *, cause: str = "", place: str = "body"
) -> ApiError:
    """400 for one field of the body (or of the query) that failed validation; an object or a list is only counted. `cause`:
    the ValueError of a check of vLLM's own."""
    shown = str(value)[:200]
    if isinstance(value, (list, dict)):
        container = cast("Sized", value)
        shown = f"<{type(container).__name__} of {len(container)} items>"
    context = f", 'ctx': {{'error': ValueError({cause!r})}}" if cause else ""
    detail = f"{{'type': '{kind}', 'loc': '{place}.{field}', 'msg': '{message}', 'input': {shown!r}{context}}}"
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", f"{place}.{field}" if field else place)


def missing(field: str, body: dict[str, Any]) -> ApiError:
    """400 for a field that has to be there."""
    return invalid(field, "Field required", body, "missing")


def refused(message: str, param: str | None = None, value: object = None) -> ApiError:
    """400 for a request that is well formed but cannot be done."""
    if param is not None:
        message += f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    return ApiError(400, message, "BadRequestError", param)


def internal(message: str) -> ApiError:
    """500."""
    return ApiError(500, message, "InternalServerError")


def http_error(status: int, message: str) -> ApiError:
    """What a route raises by itself."""
    return ApiError(status, message, HTTPStatus(status).phrase)


@contextlib.contextmanager
def anthropic_shape(only: str = "") -> Generator[None]:
    """What fails in here (with the type `only`, if given) is answered in Anthropic's shape. vLLM's validation of a body is not."""
    try:
        yield
    except ApiError as error:
        error.anthropic = only in {"", error.kind}
        raise
