"""The window in a seal: it reads back as itself or not at all, and it stands for exactly what it covers."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.context.left_out import LeftOut
from antiphon.context.rows import Row
from antiphon.context.sealed_window import (
    HASH_BYTES,
    HEADING,
    SealedItem,
    SealedNode,
    SealedWindow,
    decode_window,
    encode_window,
    expand,
    hash_item,
    list_covered,
    render_summary,
)
from antiphon.protocol.items import Item, Message, decode_stored_item, make_user_message, message_text

ROLES = ("user", "assistant", "system", "developer")


def make_item(**fields: Any) -> Item:
    return decode_stored_item(msgspec.json.encode(fields))


def say(text: str, role: str = "user") -> Item:
    return make_item(type="message", role=role, content=text)


def make_row(row_id: str, item: Item) -> Row:
    return Row(id=row_id, item=item, node="resp_1")


def make_compaction(row_id: str) -> Row:
    return make_row(row_id, make_item(type="compaction", id=row_id, encrypted_content=f"seal of {row_id}"))


def make_window(item_id: str, covers: list[Item], kept: list[Row], **more: Any) -> SealedWindow:
    """A window that covers items and keeps rows, with a summary unless told otherwise."""
    return SealedWindow(
        id=item_id,
        model="m",
        covers=b"".join(map(hash_item, covers)),
        items=tuple(SealedItem(row.id, row.node, row.item.raw) for row in kept),
        **{"summary": f"Summary {item_id}", **more},
    )


def tell(rows: list[Row]) -> list[str]:
    """What stands in rows: texts of messages, else types; a summary as its first line behind the heading."""
    told = []
    for row in rows:
        value = row.item.value
        text = message_text(value) if isinstance(value, Message) else row.item.type
        told.append(text.removeprefix(HEADING).strip().split("\n")[0])
    return told


# Written and read


TEXTS = st.text(max_size=20)
WINDOWS = st.builds(
    SealedWindow,
    id=TEXTS,
    model=TEXTS,
    summary=TEXTS,
    is_extract=st.booleans(),
    facts=st.lists(TEXTS, max_size=3).map(tuple),
    left_out=st.lists(
        st.builds(LeftOut, TEXTS, TEXTS, st.integers(0, 9), st.integers(0, 9), TEXTS), max_size=3
    ).map(tuple),
    items=st.lists(
        st.builds(
            SealedItem, TEXTS, TEXTS, st.binary(max_size=20), st.sampled_from([None, "elide", "summary"])
        ),
        max_size=3,
    ).map(tuple),
    covers=st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES), max_size=3).map(b"".join),
    nodes=st.lists(
        st.builds(SealedNode, TEXTS, st.lists(st.integers(0, 9), max_size=2).map(tuple)), max_size=2
    ).map(tuple),
)


@given(WINDOWS)
def test_a_window_reads_back_as_itself(window: SealedWindow) -> None:
    """Ours: and its bytes are the same every time."""
    plain = encode_window(window)
    assert decode_window(plain) == window
    assert encode_window(decode_window(plain)) == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": 0},
        {"covers": b"x" * (HASH_BYTES - 1)},
        {"summary_at": 1},
        {"summary_at": -1},
        {"surprise": 1},
        {"id": None},
        {"items": [["msg_1", "", b"{}", "burnt"]]},
        {"items": [["msg_1", "", 5]]},
        {"left_out": [["msg_1"]]},
    ],
)
def test_what_is_no_window_of_this_form_is_not_read(changes: dict[str, Any]) -> None:
    """Ours: a seal opens for years, and another version wrote it."""
    fields = {"version": 1, "id": "cmp_1", "model": "m", **changes}
    with pytest.raises(msgspec.MsgspecError):
        decode_window(msgspec.msgpack.encode(fields))
    assert decode_window(msgspec.msgpack.encode({"version": 1, "id": "cmp_1", "model": "m"}))


# What is the same item


def same(*forms: dict[str, Any]) -> bool:
    return len({hash_item(make_item(**form)) for form in forms}) == 1


def test_an_item_is_the_same_in_every_form_that_means_the_same() -> None:
    """Architecture: without id, status, nulls and unknown keys; a string is one part."""
    text = [{"type": "input_text", "text": "Hi"}]
    assert same(
        {"type": "message", "role": "user", "content": "Hi"},
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": text},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "user", "content": text},
        {"content": "Hi", "role": "user", "phase": None, "unknown": 1, "type": "message"},
    )
    assert same(
        {"type": "message", "role": "assistant", "content": "Hi"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
        },
    )
    assert same(
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "x", "status": "completed"},
    )
    assert same(
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "compaction_summary", "id": "cmp_1", "encrypted_content": "x"},
    )


def test_arguments_are_known_by_what_they_say() -> None:
    """Ours: some clients write JSON anew before they send it back."""
    call = {"type": "function_call", "call_id": "c", "name": "f"}
    forms = ['{"a":1,"b":[2]}', '{ "b": [2], "a": 1 }']
    assert len({hash_item(make_item(**call, arguments=form)) for form in forms}) == 1


def test_items_that_mean_something_else_are_others() -> None:
    """Ours: what is covered by mistake is lost."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    forms: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hi"},
        {"role": "developer", "content": "Hi"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "H"}, {"type": "input_text", "text": "i"}],
        },
        {"role": "user", "content": [{"type": "input_image", "image_url": "Hi"}]},
        {"role": "user", "content": [{"type": "input_file", "file_id": "Hi"}]},
        call,
        {**call, "call_id": "d"},
        {**call, "name": "g"},
        {**call, "namespace": "n"},
        {**call, "arguments": '{"a": 1}'},
        {**call, "arguments": '{"a": "1"}'},
        {**call, "arguments": '{"a": 1'},
        {"type": "function_call_output", "call_id": "c", "output": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "{}"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "compaction", "encrypted_content": "y"},
        {"type": "web_search_call", "id": "ws_1", "action": {"query": "a"}},
        {"type": "web_search_call", "id": "ws_1", "action": {"query": "b"}},
    ]
    assert len({hash_item(make_item(**form)) for form in forms}) == len(forms)


@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b'{"type":"message","content":5}', b'{"content":[5]}']
)
def test_what_is_no_item_has_a_hash_too(raw: bytes) -> None:
    """Ours: an old store may hold anything."""
    item = Item("message", raw, Message(role="user", content=""))
    assert len(hash_item(item)) == HASH_BYTES
    assert hash_item(item) == hash_item(item)


# In its place


def test_a_window_stands_in_the_place_of_what_it_covers() -> None:
    """Architecture: system items stay; the summary, then what was kept; what came after stays behind it."""
    items = [say("Rules", "system"), say("One"), say("Two", "assistant"), say("Three")]
    rows = [make_row(f"msg_{number}", item) for number, item in enumerate(items)]
    window = make_window("cmp_1", items, [rows[3]])
    path = [*rows, make_compaction("cmp_1"), make_row("msg_9", say("After"))]
    expansion = expand(path, {"cmp_1": window})
    assert tell(expansion.rows) == ["Rules", "Summary cmp_1", "Three", "After"]
    assert [row.id for row in expansion.superseded] == ["msg_1", "msg_2", "msg_3"]
    assert expansion.windows == {"cmp_1": window}
    assert expansion.rows[1].replaced == "summary"
    assert (expansion.rows[2].id, expansion.rows[2].item.raw) == ("msg_3", rows[3].item.raw)


def test_without_windows_a_path_is_what_it_is() -> None:
    """Ours: a seal that is passed on stays where it stands."""
    path = [make_row("msg_1", say("One")), make_compaction("cmp_1")]
    assert expand(path, {}).rows == path


def test_an_item_is_dropped_as_often_as_it_is_covered() -> None:
    """Architecture: each appears exactly once; the same words said again later are another item."""
    path = [*(make_row(f"msg_{number}", say("Go on.")) for number in range(3)), make_compaction("cmp_1")]
    window = make_window("cmp_1", [say("Go on."), say("Go on.")], [])
    assert tell(expand(path, {"cmp_1": window}).rows) == ["Go on.", "Summary cmp_1"]


def test_a_client_that_sends_its_own_messages_beside_the_item_shows_them_once() -> None:
    """Codex keeps the user messages itself and sends them before the item."""
    user = make_row("msg_1", say("Mend the parser."))
    window = make_window("cmp_1", [user.item, say("Done", "assistant")], [user])
    for path in (
        [user, make_compaction("cmp_1")],
        [make_compaction("cmp_1")],
        [make_row("other", make_user_message("Mend the parser.")), make_compaction("cmp_1")],
    ):
        assert tell(expand(path, {"cmp_1": window}).rows) == ["Summary cmp_1", "Mend the parser."]


def test_system_items_of_a_window_are_shown_where_the_path_has_none() -> None:
    """Architecture: with `store:false` the seal is all that there is; a system item never stands twice."""
    rules = make_row("msg_1", say("Rules", "system"))
    window = make_window("cmp_1", [rules.item], [rules], summary_at=1)
    assert tell(expand([make_compaction("cmp_1")], {"cmp_1": window}).rows) == ["Rules", "Summary cmp_1"]
    for path in ([rules, make_compaction("cmp_1")], [make_compaction("cmp_1"), rules]):
        assert tell(expand(path, {"cmp_1": window}).rows).count("Rules") == 1


def test_a_later_window_stands_for_the_earlier_ones_that_it_covers() -> None:
    """Ours: a second compaction takes the first one's place, and does not nest it."""
    one, two = make_row("msg_1", say("One")), make_row("msg_2", say("Two"))
    first = make_window("cmp_1", [one.item], [one])
    covered = [make_compaction("cmp_1").item, one.item, two.item]
    second = make_window("cmp_2", covered, [two])
    path = [one, make_compaction("cmp_1"), two, make_compaction("cmp_2"), make_row("msg_3", say("Three"))]
    windows = {"cmp_1": first, "cmp_2": second}
    expansion = expand(path, windows)
    assert tell(expansion.rows) == ["Summary cmp_2", "Two", "Three"]
    assert expansion.windows == {"cmp_2": second}
    # Without the first item in the input the second means the same.
    assert tell(expand([path[3], path[4]], windows).rows) == ["Summary cmp_2", "Two", "Three"]


def test_independent_windows_stand_side_by_side() -> None:
    """Ollama reference F5: several compaction items in one input."""
    first = make_window("cmp_1", [say("One")], [make_row("msg_1", say("One"))])
    second = make_window("cmp_2", [say("Two")], [make_row("msg_2", say("Two"))])
    path = [make_compaction("cmp_1"), make_compaction("cmp_2")]
    windows = {"cmp_1": first, "cmp_2": second}
    assert tell(expand(path, windows).rows) == ["Summary cmp_1", "One", "Summary cmp_2", "Two"]


def test_a_window_without_a_summary_is_its_items_alone() -> None:
    """Ours: the free rungs replace results and tell nothing else."""
    kept = [make_row("msg_1", say("One")), make_row("msg_2", say("[elided]"))]
    window = make_window("cmp_1", [say("One"), say("Two")], kept, summary="")
    path = [make_row("msg_1", say("One")), make_row("msg_2", say("Two")), make_compaction("cmp_1")]
    assert tell(expand(path, {"cmp_1": window}).rows) == ["One", "[elided]"]


def test_the_one_message_holds_summary_facts_and_what_was_left_out() -> None:
    """Architecture: fixed heading, summary, factsheet, then the index."""
    window = SealedWindow(
        id="cmp_1",
        model="m",
        summary="It works.",
        facts=("Paths: a.py",),
        left_out=(LeftOut("msg_1", "msg_1", 1, 5, "user message"), LeftOut("", "", 2, 9)),
    )
    heading, summary, facts, index = render_summary(window).split("\n\n")
    assert (heading, summary) == (HEADING, "It works.")
    assert facts.split("\n")[1:] == ["Paths: a.py"]
    assert index.split("\n")[1:] == [
        "- msg_1 user message: 5 tokens",
        "- 2 items, 9 tokens: not stored by this server; the client that sent them holds them",
    ]
    assert render_summary(msgspec.structs.replace(window, facts=(), left_out=())) == f"{HEADING}\n\nIt works."


@st.composite
def make_histories(draw: st.DrawFn) -> tuple[list[Row], dict[str, SealedWindow]]:
    """A path on which compactions were made, each of all that was shown."""
    rows: list[Row] = []
    windows: dict[str, SealedWindow] = {}
    for number, is_pass in enumerate(draw(st.lists(st.booleans(), max_size=14))):
        if not is_pass:
            role = draw(st.sampled_from(ROLES))
            rows.append(make_row(f"msg_{number}", say(draw(st.sampled_from(["a", "b", str(number)])), role)))
            continue
        shown = [row for row in expand(rows, windows).rows if row.replaced != "summary"]
        kept = [row for row in shown if draw(st.booleans())]
        item_id = f"cmp_{number}"
        covers = [row.item for row in rows] + [
            row.item for row in shown if row.id not in {each.id for each in rows}
        ]
        windows[item_id] = make_window(item_id, covers, kept)
        rows.append(make_compaction(item_id))
    return rows, windows


@given(make_histories())
@settings(max_examples=300, deadline=None)
def test_each_item_of_a_path_is_shown_or_superseded_exactly_once(
    history: tuple[list[Row], dict[str, SealedWindow]],
) -> None:
    """Architecture: nothing is lost and nothing twice, over any number of compactions; order is kept."""
    rows, windows = history
    expansion = expand(rows, windows)
    own = [row for row in rows if row.id not in windows]
    shown = Counter(row.id for row in expansion.rows if row.replaced != "summary")
    assert all(count == 1 for count in shown.values()), shown
    superseded = {row.id for row in expansion.superseded}
    last = max((at for at, row in enumerate(rows) if row.id in windows), default=-1)
    for row in own:
        assert shown[row.id] or row.id in superseded
    # System and developer items never move, and what came after the last pass is there as it came.
    system = [
        row.id for row in own if isinstance(row.item.value, Message) and row.item.value.role in ROLES[2:]
    ]
    assert [row.id for row in expansion.rows if row.id in set(system)] == system
    tail = [row.id for row in rows[last + 1 :]]
    assert [row.id for row in expansion.rows][len(expansion.rows) - len(tail) :] == tail
    if last >= 0:
        newest = windows[rows[last].id]
        kept = {sealed.id for sealed in newest.items} | set(system) | set(tail)
        assert set(shown) == kept
        assert list(expansion.windows) == [newest.id]
        assert sum(row.replaced == "summary" for row in expansion.rows) == 1
    for row in expansion.rows:
        assert row.replaced == "summary" or json.loads(row.item.raw)


def test_covers_are_counted() -> None:
    """Ours."""
    window = make_window("cmp_1", [say("a"), say("a"), say("b")], [])
    assert list_covered(window) == Counter({hash_item(say("a")): 2, hash_item(say("b")): 1})
