"""Reading a `multipart/form-data` body as a stream: parts in order, nothing kept."""

from __future__ import annotations

from dataclasses import dataclass

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from agent_sandbox.errors import ArgumentError

_MAX_PARTS = 1_000


@dataclass(slots=True)
class PartBegin:
    r"""A part begins.

    Attributes:
        name: Name of the form field.
        filename: As it stands in the header, only `\"` and `\\` unescaped; None where absent.
    """

    name: str
    filename: str | None


@dataclass(slots=True)
class PartEnd:
    """The part that began last is complete."""


class PartReader:
    """Turns the bytes of a body into parts, however they are cut.

    Args:
        content_type: The header's raw value.

    Raises:
        ArgumentError: E2001: it is no multipart form, or names no usable boundary.
    """

    def __init__(self, content_type: bytes) -> None:
        media_type, options = parse_options_header(content_type)
        if media_type != b"multipart/form-data" or not options.get(b"boundary"):
            raise ArgumentError
        self._events: list[PartBegin | bytes | PartEnd] = []
        self._parts = 0
        self._complete = False
        self._field = b""
        self._value = b""
        self._disposition = b""
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._on_part_begin,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_end": self._on_end,
                },
            )
        except FormParserError:
            raise ArgumentError from None

    def feed(self, data: bytes) -> list[PartBegin | bytes | PartEnd]:
        """Take the next bytes and return what they complete, in order; data comes as it is cut.

        Raises:
            ArgumentError: E2001: the body is malformed.
        """
        try:
            self._parser.write(data)
        except FormParserError:
            raise ArgumentError from None
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """Declare that no bytes will follow.

        Raises:
            ArgumentError: E2001: the closing boundary is missing.
        """
        if not self._complete:
            raise ArgumentError

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ArgumentError
        self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def _on_headers_finished(self) -> None:
        options = disposition_options(self._disposition)
        self._events.append(PartBegin(options.get("name", ""), options.get("filename")))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._events.append(data if start == 0 and end == len(data) else data[start:end])

    def _on_part_end(self) -> None:
        self._events.append(PartEnd())

    def _on_end(self) -> None:
        self._complete = True


def disposition_options(value: bytes) -> dict[str, str]:
    """Return the parameters of a `form-data` disposition (RFC 7578 section 4.2, names as UTF-8).

    The library's own reading is not used here: it shortens what looks like a Windows path.

    Raises:
        ArgumentError: E2001: it is malformed, no `form-data`, or a parameter comes twice.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise ArgumentError from None
    kind, _, rest = text.partition(";")
    if kind.strip().lower() != "form-data":
        raise ArgumentError
    options: dict[str, str] = {}
    while rest := rest.strip():
        name, equals, rest = rest.partition("=")
        name = name.strip().lower()
        if not equals or name in options:
            raise ArgumentError
        if rest.startswith('"'):
            options[name], rest = _quoted(rest)
        else:
            options[name], _, rest = rest.partition(";")
            options[name] = options[name].strip()
    return options


def _quoted(text: str) -> tuple[str, str]:
    """Return the value of the quoted string at the start of text, and what follows it."""
    value: list[str] = []
    position = 1
    while position < len(text):
        char = text[position]
        if char == '"':
            after = text[position + 1 :].lstrip()
            if after and not after.startswith(";"):
                break
            return "".join(value), after[1:]
        # Browsers and Go leave a lone backslash alone: only these two are escapes.
        if char == "\\" and text[position + 1 : position + 2] in ('"', "\\"):
            position += 1
            char = text[position]
        value.append(char)
        position += 1
    raise ArgumentError
