from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_vllm import sse

PROPERTY = settings(deadline=None, database=None)


def decode(*pieces: bytes) -> list[str]:
    decoder = sse.EventDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.flush()


def test_an_event_is_returned_when_its_blank_line_arrives() -> None:
    decoder = sse.EventDecoder()
    assert decoder.feed(b"data: a\n") == []
    assert decoder.feed(b"\n") == ["data: a\n\n"]


def test_several_events_in_one_read_are_told_apart() -> None:
    assert decode(b"data: a\n\ndata: b\n\ndata: [DONE]\n\n") == [
        "data: a\n\n",
        "data: b\n\n",
        "data: [DONE]\n\n",
    ]


def test_a_character_split_between_reads_stays_whole() -> None:
    """user-problems 26."""
    raw = "data: 🦀中\n\n".encode()
    assert decode(*[raw[i : i + 1] for i in range(len(raw))]) == ["data: 🦀中\n\n"]


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n", "\r\n\n", "\r\n\r"])
def test_every_line_end_of_the_standard_ends_an_event(blank: str) -> None:
    assert decode(f"data: a{blank}data: b".encode()) == [f"data: a{blank}", "data: b"]


def test_one_crlf_is_not_a_blank_line() -> None:
    assert decode(b"event: x\r\ndata: a\r\n\r\n") == ["event: x\r\ndata: a\r\n\r\n"]


def test_a_crlf_split_between_reads_is_one_line_end() -> None:
    assert decode(b"data: a\r\n\r", b"\ndata: b\n\n") == ["data: a\r\n\r\n", "data: b\n\n"]


def test_keep_alive_comments_are_events_without_data() -> None:
    events = decode(b": ping\n\ndata: a\n\n")
    assert [sse.data_of(event) for event in events] == [None, "a"]


def test_a_byte_order_mark_is_dropped_at_the_start_only() -> None:
    assert decode(b"\xef", b"\xbb\xbfdata: a\n\ndata: \xef\xbb\xbf\n\n") == [
        "data: a\n\n",
        "data: \ufeff\n\n",
    ]


def test_bytes_that_are_not_utf_8_become_replacement_characters() -> None:
    assert decode(b"data: \xff\n\n") == ["data: \ufffd\n\n"]


def test_flush_returns_what_has_no_blank_line_once() -> None:
    decoder = sse.EventDecoder()
    decoder.feed(b"data: [DONE]")
    assert decoder.flush() == ["data: [DONE]"]
    assert decoder.flush() == []


@PROPERTY
@given(
    st.lists(
        st.sampled_from([b"data: a", b"\n", b"\r", b"\r\n", b": c", b"\xe4\xb8\xad", b"\xf0", b"", b"x"])
    ),
    st.data(),
)
def test_any_split_gives_the_same_events(parts: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    borders = [0, *cuts, len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(borders)]
    assert decode(*pieces) == decode(raw)


@PROPERTY
@given(st.lists(st.text(alphabet="a中🦀\u2028 :", max_size=5)), st.sampled_from(["\n", "\r\n"]), st.data())
def test_joining_the_events_gives_the_stream(lines: list[str], end: str, data: st.DataObject) -> None:
    text = "".join(f"{line}{end}" for line in lines)
    raw = text.encode()
    cut = data.draw(st.integers(0, len(raw)))
    assert "".join(decode(raw[:cut], raw[cut:])) == text


def test_one_large_event_in_many_small_reads_takes_linear_time() -> None:
    decoder = sse.EventDecoder()
    piece = b"x" * 1024
    started = time.perf_counter()
    for _ in range(20_000):
        decoder.feed(piece)
    assert len(decoder.feed(b"\n\n")) == 1
    assert time.perf_counter() - started < 5  # 20 MB; shifting or searching it anew each time takes minutes


def test_one_read_of_many_events_takes_linear_time() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n' * 50_000
    started = time.perf_counter()
    assert len(decode(raw)) == 50_000
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("data: a\n\n", "a"),
        ("data:a\n\n", "a"),
        ("data:  a\n\n", " a"),
        ("data\n\n", ""),
        ("data: a\ndata: b\n\n", "a\nb"),
        ("event: x\r\ndata: a\r\n\r\n", "a"),
        ("event: x\n\n", None),
        (": comment\n\n", None),
        ("", None),
        ("database: a\n\n", None),
        ("data: a\u2028b\x85c\x0bd\n\n", "a\u2028b\x85c\x0bd"),
        ("data: a\u2028b\ndata: c\n\n", "a\u2028b\nc"),
    ],
)
def test_data_of_joins_the_data_lines(event: str, data: str | None) -> None:
    assert sse.data_of(event) == data


@pytest.mark.parametrize(
    ("event", "done"),
    [
        ("data: [DONE]\n\n", True),
        ("data:[DONE]\r\n\r\n", True),
        ("data: [DONE]", True),
        ('data: {"text": "[DONE]"}\n\n', False),
        (": [DONE]\n\n", False),
    ],
)
def test_only_the_closing_event_is_done(event: str, done: bool) -> None:
    assert sse.is_done(event) is done


@PROPERTY
@given(st.text(alphabet="ab\n 中"), st.sampled_from([None, "error", "message_stop"]))
def test_encode_is_undone_by_decoding(data: str, name: str | None) -> None:
    text = sse.encode(data, name)
    events = decode(text.encode())
    assert events == [text]
    assert sse.data_of(text) == data
    assert text.partition("data:")[0] == (f"event: {name}\n" if name else "")
