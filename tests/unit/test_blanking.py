"""Single items blanked in a node's arrays, in exactly the bytes that these took before."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.errors import StoreError
from antiphon.store.blanking import blank_positions
from antiphon.store.packing import PACKED_LIMIT_BYTES, pack_in_place, pack_items, unpack_items

ITEMS = st.one_of(
    st.sampled_from(
        [
            b'{"role":"user","content":""}',
            b'{"role":"user","content":"null"}',
            b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"x"}]}',
            b'{"type":"reasoning","status":null, "x" : [ {"role":"user","content":"nested"} ] }',
            b'{"type":"function_call","call_id":"c","arguments":"{}"}',
            b"{}",
            b"null",
        ]
    ),
    st.text(max_size=20).map(lambda text: msgspec.json.encode({"role": "user", "content": text})),
)
SPACES = st.sampled_from([b"", b"", b" ", b"\n", b"\t \r\n"])
ARRAYS = st.tuples(st.lists(ITEMS, max_size=6), SPACES).map(
    lambda drawn: drawn[1] + b"[" + (drawn[1] + b"," + drawn[1]).join(drawn[0]) + b"]" + drawn[1]
)


def split(array: bytes) -> list[bytes]:
    """The items as they stand."""
    return [bytes(item) for item in msgspec.json.decode(array, type=list[msgspec.Raw])]


@given(asked=ARRAYS, made=ARRAYS, positions=st.sets(st.integers(-2, 14)))
def test_blanked_arrays_keep_their_stored_length_and_their_other_items(
    asked: bytes, made: bytes, positions: set[int]
) -> None:
    """Ours: a row that keeps its length is overwritten in place; raw bytes of other items are kept."""
    items = split(asked) + split(made)
    stored = (pack_items(asked), pack_items(made))
    blanked_asked, blanked_made, blanked = blank_positions(asked, made, positions)
    assert blanked == [at for at in sorted(positions) if 0 <= at < len(items) and items[at] != b"null"]
    packed = (pack_in_place(blanked_asked, stored[0]), pack_in_place(blanked_made, stored[1]))
    assert [len(text) for text in packed] == [len(text) for text in stored]
    after = split(unpack_items(packed[0])) + split(unpack_items(packed[1]))
    assert after == [b"null" if at in blanked else item for at, item in enumerate(items)]
    if not blanked:
        assert (packed[0], packed[1]) == stored
    # What was blanked once can be blanked further.
    rest = range(len(items))
    more = blank_positions(unpack_items(packed[0]), unpack_items(packed[1]), rest)
    assert len(pack_in_place(more[0], packed[0])) == len(stored[0])
    assert split(more[0]) + split(more[1]) == [b"null"] * len(items)


def test_an_array_that_is_stored_as_it_is_stays_so() -> None:
    """Ours: also where what is left would be short enough to be packed."""
    array = b'[{"role":"user","content":"%s"},{"role":"user","content":"y"}]' % (b"x" * PACKED_LIMIT_BYTES)
    stored = pack_items(array)
    blanked, _, positions = blank_positions(array, b"[]", [0])
    packed = pack_in_place(blanked, stored)
    assert positions == [0]
    assert len(packed) == len(stored)
    assert split(unpack_items(packed)) == [b"null", b'{"role":"user","content":"y"}']


@pytest.mark.parametrize("array", [b"", b"{}", b"[", b"text", b'["\xff"]x'])
def test_what_is_no_array_is_refused(array: bytes) -> None:
    """Ours: nothing is overwritten by guess."""
    with pytest.raises(StoreError, match="no JSON array"):
        blank_positions(array, b"[]", [0])
