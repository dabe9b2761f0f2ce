"""What is left of a path that things were deleted from or added to: what is sent is always in order."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.paths import mend_path, read_path
from antiphon.protocol.items import Item, get_call_id, is_call
from antiphon.sessions import Node
from antiphon.sessions.pairing import check_pairing


def make_path(*nodes: tuple[str, str, str]) -> list[Node]:
    """Nodes with input and output in words: `c1` is a call, `o1` its output, `a1` an async call, `m` text."""
    return [
        Node(id=f"{kind}_{at:036x}", parent=None, kind=kind, input=encode(given_), output=encode(made))  # type: ignore[arg-type]
        for at, (kind, given_, made) in enumerate(nodes)
    ]


def encode(words: str) -> bytes:
    """The items that some words stand for."""
    return msgspec.json.encode([make_item(word) for word in words.split()])


def make_item(word: str) -> dict[str, Any]:
    """The item that a word stands for."""
    if word == "m":
        return {"type": "message", "role": "user", "content": "x"}
    call_id = word[1:]
    if word.startswith("o"):
        return {"type": "function_call_output", "call_id": call_id, "output": "x"}
    call = {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}
    return {**call, "async": True} if word.startswith("a") else call


def mend(*nodes: tuple[str, str, str]) -> tuple[str, list[str]]:
    """What is left, in words, and the notes."""
    steps, notes = mend_path(read_path(make_path(*nodes)))
    assert all(len(step.input) == len(step.input_ids) for step in steps)
    return " ".join(describe(item) for step in steps for item in (*step.input, *step.output)), notes


def describe(item: Item) -> str:
    """The word for an item."""
    if item.type == "message":
        return "m"
    is_async = getattr(item.value, "is_async", None)
    return f"{('a' if is_async else 'c') if is_call(item) else 'o'}{get_call_id(item)}"


def test_each_call_stands_once_and_each_output_once_behind_its_call() -> None:
    """Ours: what is left out is told, and why."""
    assert mend(("items", "o1 c1 o1 m", "")) == (
        "c1 o1 m",
        [
            (
                "No call 1 stands before its output (it was deleted, or never added); the output is not shown to the "
                "model."
            )
        ],
    )
    assert mend(("items", "c1 o1 o1", "")) == (
        "c1 o1",
        ["The call 1 has two outputs; the second one is not shown to the model."],
    )
    assert mend(("items", "c1 m", ""), ("items", "c1 o1", "")) == (
        "c1 m o1",
        ["The call 1 stands twice; the second one is not shown to the model."],
    )
    assert mend(("items", "c1", ""), ("response", "m", "c2")) == (
        "m c2",
        ["The call 1 has no output (it was deleted, or never added); the call is not shown to the model."],
    )
    assert mend(("items", "a1 m o1 o1", ""), ("response", "m", "a2"), ("response", "m", "m")) == (
        "a1 m o1 o1 m a2 m m",
        [],
    )


_WORDS = st.lists(st.sampled_from(["c1", "c2", "a3", "o1", "o2", "o3", "m"]), max_size=8).map(" ".join)


@given(rows=st.lists(st.tuples(st.sampled_from(["items", "response"]), _WORDS, _WORDS), max_size=4))
def test_what_is_left_of_any_path_is_what_a_request_may_say(rows: list[tuple[str, str, str]]) -> None:
    """Ours: a model server is sent nothing that a request would be refused for, and nothing is left out twice."""
    end = ("response", "m", "m")
    steps, notes = mend_path(read_path(make_path(*rows, end)))
    items = [item for step in steps for item in (*step.input, *step.output)]
    check_pairing(items)
    again, _ = mend_path(steps)
    assert [step.input for step in again] == [step.input for step in steps]
    before = sum(len(f"{given_} {made}".split()) for _, given_, made in (*rows, end))
    assert len(items) + len(notes) == before
