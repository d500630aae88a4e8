"""Forms with a file in them (`multipart/form-data`), looked into as they come: which model is asked for, and whether the form is
whole. Nothing of the file is kept here."""

from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vllm_mm.domain.errors import BadRequest

VALUE: Final = 1024
"""Bytes of a field that is read here; no model's name is longer."""
_READ: Final = frozenset({b"model", b"stream"})


class Form:
    """One body, fed in pieces of any size."""

    def __init__(self, content_type: bytes) -> None:
        """Raises BadRequest for what is no form, or has no boundary."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind.lower() != b"multipart/form-data" or not boundary:
            raise BadRequest(
                "This route takes a form: send Content-Type: multipart/form-data with a boundary, the audio as `file`, and the "
                "model's name as `model`."
            )
        self.model: str | None = None
        """Known when its part is complete."""
        self.stream = False
        self.span: tuple[int, int] | None = None
        """Where the value of `model` stands in the body."""
        self.size = 0
        """Bytes so far."""
        self._ended = False
        self._chunk = b""
        self._at: int | None = None
        self._header = self._value = b""
        self._disposition = b""
        self._name: bytes | None = None
        self._kept: bytearray | None = None
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise BadRequest(f"The form cannot be read: {error}.") from error

    def feed(self, data: bytes) -> None:
        """Raises BadRequest with what is wrong, and where."""
        self._chunk = data
        try:
            self._parser.write(data)
        except FormParserError as error:
            at = self.size + max(0, getattr(error, "offset", 0))
            raise BadRequest(f"The form is broken at byte {at}: {error}.") from error
        self.size += len(data)

    def finish(self) -> None:
        """The body is complete. Raises BadRequest where the form is not."""
        if not self._ended:
            raise BadRequest(f"The form is broken: it ends after {self.size} bytes, without its last boundary.")
        if not self.model:
            raise BadRequest(
                "The form names no model. Add the field `model`, one of those that GET /v1/models lists.", param="model"
            )

    # What the parser tells.

    def _on_part_begin(self) -> None:
        self._header = self._value = self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._disposition)
        self._name = options.get(b"name") if kind.lower() == b"form-data" else None
        if self._name is None:
            raise BadRequest("The form is broken: a part has no `Content-Disposition: form-data` with a name.")
        self._kept = bytearray() if self._name in _READ and b"filename" not in options else None
        self._at = None

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._kept is None:
            return
        if self._at is None and data is self._chunk:
            self._at = self.size + start
        self._kept += data[start:end]
        if len(self._kept) > VALUE:
            field = (self._name or b"").decode()
            raise BadRequest(f"The form's field `{field}` is longer than {VALUE} bytes.", param=field)

    def _on_part_end(self) -> None:
        if self._kept is None:
            return
        value, self._kept = bytes(self._kept), None
        if self._name == b"stream":
            self.stream = value.lower() in {b"true", b"1", b"on", b"yes", b"t", b"y"}
            return
        try:
            name = value.decode()
        except UnicodeDecodeError as error:
            raise BadRequest("The form's field `model` is not valid UTF-8.", param="model") from error
        if self.model is not None and self.model != name:
            raise BadRequest("The form names two models. Send the field `model` once.", param="model")
        if self.model is None and name:
            self.model = name
            self.span = (self._at, self._at + len(value)) if self._at is not None else None

    def _on_end(self) -> None:
        self._ended = True
