"""Characters that a server sends in two halves come out whole, whatever the payloads are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.halves import HalfJoiner

#: Text that UTF-8 can hold, with many characters of two halves.
TEXTS = st.text(st.one_of(st.sampled_from('😀𝄞"\\/é'), st.characters(exclude_categories=["Cs"])))


def join(*payloads: bytes) -> list[bytes]:
    """What comes out of a stream of payloads."""
    joiner = HalfJoiner()
    return [ready for payload in payloads for ready in joiner.feed(payload)] + joiner.end()


def cut(text: str, places: list[int]) -> list[str]:
    """A text cut anywhere between its UTF-16 units, as JSON counts them."""
    units = text.encode("utf-16-le")
    ends = sorted({min(place * 2, len(units)) for place in places})
    return [
        units[start:end].decode("utf-16-le", errors="surrogatepass")
        for start, end in zip([0, *ends], [*ends, len(units)], strict=True)
    ]


@given(TEXTS, st.lists(st.integers(0, 20), max_size=10), st.booleans())
def test_texts_cut_anywhere_add_up(text: str, places: list[int], twice: bool) -> None:
    """RFC 8259 section 7: a character beyond U+FFFF is two escapes, and only both are one character."""
    pieces = cut(text, places)
    payloads = [json.dumps({"a": piece, **({"b": [piece]} if twice else {})}).encode() for piece in pieces]
    told = [json.loads(payload) for payload in join(*payloads)]
    assert "".join(each["a"] for each in told) == text
    assert all(each["b"] == [each["a"]] for each in told if twice)


@pytest.mark.parametrize(
    ("payloads", "told"),
    [
        ([rb'"a\ud83d"', b"[DONE]"], [rb'"a\ufffd"', b"[DONE]"]),
        ([rb'"a\uD83D"'], [rb'"a\ufffd"']),
        ([rb'"\ude00b"'], [rb'"\ufffdb"']),
        ([rb'"a\ud83db"', rb'"\ude00"'], [rb'"a\ufffdb"', rb'"\ufffd"']),
        ([rb'"\ud83d\ud83d"', rb'"\ude00"'], [rb'"\ufffd"', rb'"\ud83d\ude00"']),
        ([rb'"\ud83d"', rb'"\"\ude00"'], [rb'"\ufffd"', rb'"\"\ufffd"']),
        # An escaped backslash is no half: it stands in arguments, which are JSON within JSON.
        ([rb'"\\ud83d"', rb'"\\ude00"'], [rb'"\\ud83d"', rb'"\\ude00"']),
        ([rb'{"x":1}', rb'"\ud83d\ude00"'], [rb'{"x":1}', rb'"\ud83d\ude00"']),
    ],
)
def test_a_half_that_stays_alone_is_a_replacement(payloads: list[bytes], told: list[bytes]) -> None:
    """Unicode 3.9: U+FFFD stands for what is no character."""
    assert join(*payloads) == told
