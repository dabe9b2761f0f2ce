"""Pages of a path's items: found by cursor without decoding what is not shown."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.listing import find_places, list_input_items, list_items
from antiphon.engine.paths import read_places
from antiphon.protocol.errors import NotFoundError
from antiphon.sessions import Node

#: Ids as clients make them: plain ones, odd ones, and some that look like ours.
_IDS = st.one_of(
    st.none(),
    st.sampled_from(["msg_a", "msg_b-c", "msg_" + "0" * 40, "msg_" + "0" * 35 + "10000"]),
    st.text(min_size=1, max_size=3).map(lambda text: f"msg_{text}"),
)


def make_node(number: int, ids: list[str | None], output: list[str | None]) -> Node:
    """A node with a message for each id, None standing for one without; the odd ones are escaped throughout."""

    def encode(item_id: str | None) -> bytes:
        if item_id is None:
            return b'{"role":"user","content":"x"}'
        escaped = "".join(f"\\u{ord(each):04x}" if ord(each) < 0xD800 else each for each in item_id)
        told = f'"{escaped}"'.encode() if number % 2 else msgspec.json.encode(item_id)
        return b'{"type":"message","role":"user","content":"x","id":%b}' % told

    return Node(
        id=f"resp_{number:036x}",
        parent=None,
        input=b"[" + b",".join([b"null", *map(encode, ids)]) + b"]",
        output=b"[" + b",".join(map(encode, output)) + b"]",
    )


_PATHS = st.lists(st.tuples(st.lists(_IDS, max_size=3), st.lists(_IDS, max_size=2)), max_size=6).map(
    lambda rows: [make_node(number, *row) for number, row in enumerate(rows)]
)


@given(path=_PATHS, limit=st.integers(1, 4), newest_first=st.booleans())
def test_a_page_behind_any_item_is_what_decoding_everything_would_give(
    path: list[Node], limit: int, newest_first: bool
) -> None:
    """Ours: looking for a cursor in the bytes alone finds what is there, escaped ids too."""
    ids = [place.id for node in path for place in read_places(node)]
    if newest_first:
        ids.reverse()
    for start, after in [(-1, None), *enumerate(ids)]:
        # Behind the last one of an id that stands twice, so that paging always comes to an end.
        first = start if after is None else len(ids) - 1 - ids[::-1].index(after)
        page = list_items(path, limit=limit, after=after, newest_first=newest_first)
        expected = ids[first + 1 : first + 1 + limit]
        shown = [msgspec.json.decode(item)["id"] for item in page.data]
        assert shown == expected
        assert (page.first_id, page.last_id) == ((shown[0], shown[-1]) if shown else (None, None))
        assert page.has_more == (len(ids) > first + 1 + limit)
    for item_id in ids:
        assert len(find_places(path, item_id)) == ids.count(item_id)


def test_a_cursor_that_is_not_in_the_list_is_refused() -> None:
    """responses-API section 'State errors'."""
    path = [make_node(0, ["msg_a"], ["msg_b"])]
    for after in ("msg_c", "msg_" + "0" * 36 + "0000", "msg_" + "1" * 40):
        with pytest.raises(NotFoundError, match="No item found with id"):
            list_items(path, limit=1, after=after, newest_first=False)
    # The response's own output is no input.
    with pytest.raises(NotFoundError):
        list_input_items(path, limit=1, after="msg_b", newest_first=False)
