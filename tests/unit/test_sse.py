"""Server-sent events: what comes out must not depend on how the bytes were cut or styled."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.sse import DONE, SseDecoder, SseEvent, SseTooLargeError, encode_sse

TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x00"),
    max_size=12,
)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=8).filter(
    lambda name: not name.startswith(" ")
)
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


class Spoken(msgspec.Struct, frozen=True):
    """An event, and how it is written."""

    name: str | None
    lines: tuple[str, ...]
    end: bytes
    space: bytes
    noise: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        written = list(self.noise)
        if self.name is not None:
            written.append(b"event:" + self.space + self.name.encode())
        # Without the optional space a value that begins with one would lose it.
        written += [
            b"data:" + (b" " if line.startswith(" ") else self.space) + line.encode() for line in self.lines
        ]
        return b"".join(line + self.end for line in written) + self.end

    def to_event(self) -> SseEvent:
        return SseEvent(self.name or "message", "\n".join(self.lines).encode())


SPOKEN = st.builds(
    Spoken,
    name=st.none() | NAMES,
    lines=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
    end=LINE_ENDS,
    space=st.sampled_from([b"", b" "]),
    noise=st.lists(
        st.sampled_from([b": ping", b":", b"id: 7", b"retry: 10", b"unheard of: 1", b": \xc3\xa9"]),
        max_size=2,
    ).map(tuple),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({place % (len(data) + 1) for place in places})
    return [data[a:b] for a, b in zip([0, *edges], [*edges, len(data)], strict=True)]


def decode(chunks: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.close()


@given(
    spoken=st.lists(SPOKEN, max_size=6),
    places=st.lists(st.integers(0, 4000), max_size=12),
    bom=st.booleans(),
)
def test_any_style_and_any_cut_give_the_same_events(
    spoken: list[Spoken], places: list[int], bom: bool
) -> None:
    """WHATWG server-sent events, 9.2.6: three line ends, comments, fields in any number, one BOM."""
    data = b"".join(one.to_bytes() for one in spoken)
    expected = [one.to_event() for one in spoken]
    assert decode(cut((b"\xef\xbb\xbf" if bom else b"") + data, places)) == expected


@given(spoken=st.lists(SPOKEN, min_size=1, max_size=3))
def test_bytes_that_come_one_by_one_give_the_same_events(spoken: list[Spoken]) -> None:
    """WHATWG server-sent events, 9.2.6: CR LF may be cut in the middle, and so may a character."""
    data = b"".join(one.to_bytes() for one in spoken)
    assert decode([data[i : i + 1] for i in range(len(data))]) == [one.to_event() for one in spoken]


@given(
    data=st.binary(max_size=60) | st.text("\r\n:{ deatvn", max_size=40).map(str.encode),
    places=st.lists(st.integers(0, 60), max_size=6),
)
def test_even_rubbish_does_not_depend_on_the_cut(data: bytes, places: list[int]) -> None:
    """Ours."""
    assert decode(cut(data, places)) == decode([data])


def test_an_encoded_event_is_decoded_as_it_was() -> None:
    """Responses API, streaming: `event: T`, `data: {...}`, a blank line, and `[DONE]` at the end."""
    frame = encode_sse("response.created", b'{"a":1}')
    assert frame == b'event: response.created\ndata: {"a":1}\n\n'
    assert decode([frame + DONE]) == [
        SseEvent("response.created", b'{"a":1}'),
        SseEvent("message", b"[DONE]"),
    ]


def test_blocks_without_data_are_no_events_and_their_name_is_forgotten() -> None:
    """WHATWG server-sent events, 9.2.6: an empty data buffer resets the event type."""
    assert decode([b"event: a\n\nid: 1\n\n: hello\n\n\n\ndata: x\n\n"]) == [SseEvent("message", b"x")]


def test_empty_data_is_an_event() -> None:
    """WHATWG server-sent events, 9.2.6: the line `data` without a colon counts as well."""
    assert decode([b"data:\n\n", b"data\n\n", b"data: \n\n"]) == [SseEvent("message", b"")] * 3


def test_a_line_of_json_outside_any_field_is_reported() -> None:
    """Public reports of servers that write `{"error": ...}` into a running stream."""
    stream = b'data: 1\n\n{"error":{"message":"boo"}}\n\ndata: 2\n\n'
    expected = [
        SseEvent("message", b"1"),
        SseEvent("stray", b'{"error":{"message":"boo"}}'),
        SseEvent("message", b"2"),
    ]
    assert decode([stream]) == expected
    assert decode([stream[i : i + 1] for i in range(len(stream))]) == expected


@pytest.mark.parametrize("tail", [b"data: x", b"data: x\n", b"data: x\r", b"data: x\r\n"])
def test_a_block_that_the_end_cuts_off_is_marked_incomplete(tail: bytes) -> None:
    """Ours: the caller must be able to tell a cut stream from a whole one."""
    assert decode([b"event: e\n", tail]) == [SseEvent("e", b"x", complete=False)]


def test_json_that_the_end_cuts_off_is_reported_as_incomplete() -> None:
    """Ours: a server that dies with an error as its last words."""
    assert decode([b'{"error":1}']) == [SseEvent("stray", b'{"error":1}', complete=False)]


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: " + b"x" * 100 + b"\n\n"],
        [b"data: ", b"x" * 100],
        [b"data: " + b"x" * 20 + b"\n"] * 3,
        [b"x" * 100],
        [b"data: " + b"x" * 30 + b"\ndata: " + b"x" * 30 + b"\n\n"],
    ],
)
def test_an_event_over_the_limit_is_refused(chunks: list[bytes]) -> None:
    """Ours: a server must not be able to fill the memory."""
    decoder = SseDecoder(max_event_bytes=50)
    with pytest.raises(SseTooLargeError, match="more than 50 bytes"):
        _ = [decoder.feed(chunk) for chunk in chunks]


def test_many_small_events_may_exceed_the_limit_together() -> None:
    """Ours: the limit is for one event, not for the stream or a chunk."""
    decoder = SseDecoder(max_event_bytes=50)
    assert decoder.feed(b"data: 1\n\n" * 100) == [SseEvent("message", b"1")] * 100
