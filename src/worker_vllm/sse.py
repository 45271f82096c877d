"""Server-sent events: bytes to whole events, and back.

An event is kept as the text it came as, blank line included, so that joining what `EventDecoder` returns
gives the stream again. Bytes become text at event ends only: no character is ever cut.
"""

from __future__ import annotations

import codecs
import re

DONE = "[DONE]"
"""The data of the event that ends an OpenAI stream."""

# Two line ends in a row. Atomic groups, because "\r\n" must never be read as two line ends by backtracking.
_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINE_END = re.compile(r"\r\n|\r|\n")
# The longest piece of a blank line that can wait at the end of the buffer for its rest: "\r\n\r".
_OVERLAP_BYTES = 3


class EventDecoder:
    """Cut a byte stream into whole events.

    Lines may end in LF, CRLF or CR. Comments (keep-alives) are events like any other: `data_of` says that
    they hold no data. A byte order mark at the stream's start is dropped; bytes that are not UTF-8 become
    U+FFFD. How the bytes are split over `feed` calls never changes the events.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._has_carriage_returns = False
        self._at_start = True

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the events that they complete, in order."""
        self._buffer += data
        self._has_carriage_returns = self._has_carriage_returns or b"\r" in data
        events = []
        start = 0
        while (end := self._next_end()) >= 0:
            events.append(self._decode(bytes(self._buffer[start:end])))
            start = self._searched = end
        # One deletion per call, not per event: the buffer is never shifted more than once for the same bytes.
        del self._buffer[:start]
        self._searched = max(0, len(self._buffer) - _OVERLAP_BYTES)
        return events

    def flush(self) -> list[str]:
        """What is left at the stream's end without a blank line behind it, if anything."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return [self._decode(rest)] if rest else []

    def _next_end(self) -> int:
        """Where the next event ends in the buffer, or -1 while that is not known."""
        if not self._has_carriage_returns:
            found = self._buffer.find(b"\n\n", self._searched)
            return found + 2 if found >= 0 else -1
        match = _BLANK_LINE.search(self._buffer, self._searched)
        if match is None or (match.end() == len(self._buffer) and self._buffer.endswith(b"\r")):
            return -1  # after a last "\r" a "\n" may follow that belongs to the same line end
        return match.end()

    def _decode(self, raw: bytes) -> str:
        if self._at_start:
            self._at_start = False
            raw = raw.removeprefix(codecs.BOM_UTF8)
        return raw.decode("utf-8", "replace")


def data_of(event: str) -> str | None:
    """The event's data lines, joined with newlines; None where it has none (a comment, a bare event name)."""
    if event.startswith("data: ") and event.endswith("\n\n") and event.count("\n") == 2 and "\r" not in event:
        return event[6:-2]
    lines = []
    # Not str.splitlines: it also splits at U+2028 and others, which JSON text may hold as they are.
    for line in _LINE_END.split(event):
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif line == "data":
            lines.append("")
    return "\n".join(lines) if lines else None


def is_done(event: str) -> bool:
    """Whether this event is the `[DONE]` that ends an OpenAI stream."""
    return DONE in event and (data_of(event) or "").strip() == DONE


def encode(data: str, event: str | None = None) -> str:
    """One whole event holding `data`, with an `event:` line before it where a name is given."""
    head = "" if event is None else f"event: {event}\n"
    return head + "".join(f"data: {line}\n" for line in _LINE_END.split(data)) + "\n"
