"""Items -> chat messages: a table of histories, and what every history must keep."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import Segment
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from antiphon.protocol.items import decode_items

IMAGE = "data:image/png;base64,iVBORw0KGgo="


def user(text: Any) -> dict[str, Any]:
    """A user message item."""
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    """An assistant message item."""
    return {"role": "assistant", "content": text}


def system(text: str, role: str = "system") -> dict[str, Any]:
    """A system or developer message item."""
    return {"role": role, "content": text}


def call(call_id: str, arguments: str = "{}", name: str = "f") -> dict[str, Any]:
    """A function call item."""
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, value: Any = "r") -> dict[str, Any]:
    """A function call output item."""
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def thought(text: str) -> dict[str, Any]:
    """A reasoning item."""
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


def sent_call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    """A call inside an assistant message."""
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def sent_calls(*calls: dict[str, Any], content: str = "", **fields: Any) -> dict[str, Any]:
    """An assistant message with calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **fields}


def result(call_id: str, content: str = "r") -> dict[str, Any]:
    """A tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def write(items: list[dict[str, Any]], *, profile: str = "default", at_start: bool = True) -> Segment:
    """A history as a request would bring it."""
    return transcribe(decode_items(msgspec.json.encode(items)), PROFILES[profile], at_start=at_start)


def read(segment: Segment) -> list[dict[str, Any]]:
    """The messages of a segment."""
    return msgspec.json.decode(b"[" + segment.body + b"]", type=list[dict[str, Any]])


@pytest.mark.parametrize(
    ("items", "lead", "messages"),
    [
        ([user("a")], "", [user("a")]),
        (
            [user([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}])],
            "",
            [user("a\nb")],
        ),
        # One system message, first (strict templates).
        ([system("a"), system("b", "developer"), user("c")], "a\n\nb", [user("c")]),
        # After that it is a marked user message in its place, never hoisted.
        (
            [user("a"), system("b"), said("c"), system("d", "developer")],
            "",
            [user("a"), user("[system message]\nb"), said("c"), user("[developer message]\nd")],
        ),
        # There is always a user message (templates fail with "No user query found").
        ([system("a"), system("b", "developer")], "a", [user("[developer message]\nb")]),
        ([call("1"), output("1")], "", [user("Continue."), sent_calls(sent_call("1")), result("1")]),
        ([system("a"), said("b")], "a", [said("b"), user("Continue.")]),
        # What a model said in one go is one message, and results stand right behind their calls.
        (
            [user("a"), said("b"), call("1"), call("2"), output("2", "y"), output("1", "x"), said("c")],
            "",
            [
                user("a"),
                sent_calls(sent_call("1"), sent_call("2"), content="b"),
                result("2", "y"),
                result("1", "x"),
                said("c"),
            ],
        ),
        (
            [user("a"), call("1"), said("b"), user("c"), output("1")],
            "",
            [user("a"), sent_calls(sent_call("1"), content="b"), result("1"), user("c")],
        ),
        (
            [user("a"), call("1"), thought("t"), said("b"), output("1")],
            "",
            [user("a"), sent_calls(sent_call("1"), content="b", reasoning_content="t"), result("1")],
        ),
        # Reasoning goes back; llama.cpp refuses a message without content or calls (measured).
        (
            [user("a"), thought("t"), user("b")],
            "",
            [user("a"), {"role": "assistant", "content": "", "reasoning_content": "t"}, user("b")],
        ),
        (
            [user("a"), thought("t"), thought("u"), said("b")],
            "",
            [user("a"), {"role": "assistant", "content": "b", "reasoning_content": "t\n\nu"}],
        ),
        ([user("a"), {"type": "reasoning", "id": "rs_1", "summary": []}], "", [user("a")]),
        (
            [user("a"), {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
            "",
            [user("a"), said("no")],
        ),
        # Arguments are parsed by servers, so they are always an object.
        (
            [
                user("a"),
                call("1", ""),
                output("1"),
                call("2", "{bad"),
                output("2"),
                call("3", "[1]"),
                output("3"),
            ],
            "",
            [
                user("a"),
                sent_calls(sent_call("1")),
                result("1"),
                sent_calls(sent_call("2", '{"invalid_arguments":"{bad"}')),
                result("2"),
                sent_calls(sent_call("3", '{"invalid_arguments":"[1]"}')),
                result("3"),
            ],
        ),
        # Images: in place for a user, below the results for a tool.
        (
            [
                user(
                    [
                        {"type": "input_text", "text": "a"},
                        {"type": "input_image", "image_url": IMAGE, "detail": "low"},
                    ]
                )
            ],
            "",
            [
                user(
                    [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
                    ]
                )
            ],
        ),
        (
            [
                user("a"),
                call("1"),
                call("2"),
                output(
                    "1", [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": IMAGE}]
                ),
                output("2"),
                said("b"),
            ],
            "",
            [
                user("a"),
                sent_calls(sent_call("1"), sent_call("2")),
                result("1", "x\n[image: see below]"),
                result("2"),
                user(
                    [
                        {"type": "text", "text": "[image from the result of call 1]"},
                        {"type": "image_url", "image_url": {"url": IMAGE}},
                    ]
                ),
                said("b"),
            ],
        ),
    ],
)
def test_a_history_becomes_these_messages(items: Any, lead: str, messages: Any) -> None:
    """Ours; public issues about strict templates (opencode 47367, codex-router 161) in the rows."""
    segment = write(items)
    assert (segment.lead, read(segment)) == (lead, messages)


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        ("llama.cpp", "reasoning_content"),
        ("vllm", "reasoning"),
        ("ollama", "reasoning"),
        ("lm-studio", "reasoning_content"),
    ],
)
def test_reasoning_goes_back_in_the_servers_own_field(profile: str, field: str) -> None:
    """Documentation of each server."""
    segment = write([user("a"), thought("t"), said("b")], profile=profile)
    assert read(segment)[1] == {"role": "assistant", "content": "b", field: "t"}
    assert segment.warnings == ()


def test_reasoning_that_a_server_does_not_take_is_reported_once() -> None:
    """Ours: what is left out is said."""
    segment = write(
        [user("a"), thought("t"), said("b"), user("c"), thought("u"), said("d")], profile="openai"
    )
    assert read(segment) == [user("a"), said("b"), user("c"), said("d")]
    assert segment.warnings == ("Earlier reasoning is not sent back to this model.",)


def test_wrapped_arguments_are_reported() -> None:
    """Ours: what is changed is said."""
    segment = write([user("a"), call("c1", "{bad"), output("c1")])
    assert segment.warnings == ("The arguments of call c1 are no JSON object; they were wrapped.",)


def test_a_template_without_limits_takes_system_messages_in_place() -> None:
    """Profile.system_messages."""
    segment = write([user("a"), system("b", "developer")], profile="openai")
    assert read(segment) == [user("a"), system("b")]


def test_results_of_an_earlier_rounds_calls_come_first() -> None:
    """Ours: nothing stands between a call and its result, wherever the client put the result."""
    segment = write([user("b"), output("1"), output("2")], at_start=False)
    assert read(segment) == [result("1"), result("2"), user("b")]


def test_a_later_round_is_given_no_user_message() -> None:
    """Ours: only the head of a path needs one."""
    assert read(write([output("1")], at_start=False)) == [result("1")]
    assert write([], at_start=False) == Segment(lead="", body=b"")


def draw_round(draw: Any, number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Input and output of one round; its calls are answered in the next one's input."""
    text = st.text(max_size=8)
    items = [user(draw(text)) for _ in range(draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        items.insert(
            draw(st.integers(0, len(items))),
            system(draw(text), draw(st.sampled_from(["system", "developer"]))),
        )
    made: list[dict[str, Any]] = [thought(draw(text))] if draw(st.booleans()) else []
    made.append(said(draw(text)))
    made += [
        call(f"{number}.{each}", draw(st.sampled_from(["{}", "", "{bad"])))
        for each in range(draw(st.integers(0, 2)))
    ]
    return items, made


@st.composite
def paths(draw: Any) -> list[list[dict[str, Any]]]:
    """The nodes of a path: input, output, input, output, ..."""
    nodes: list[list[dict[str, Any]]] = []
    open_calls: list[str] = []
    for number in range(draw(st.integers(1, 4))):
        items, made = draw_round(draw, number)
        nodes += [[*(output(call_id) for call_id in open_calls), *items], made]
        open_calls = [item["call_id"] for item in made if item.get("type") == "function_call"]
    return nodes


@given(nodes=paths(), profile=st.sampled_from(sorted(PROFILES)))
def test_a_path_is_the_same_bytes_node_by_node_and_in_one(
    nodes: list[list[dict[str, Any]]], profile: str
) -> None:
    """Ours: purity and prefix stability. Each round's messages begin with those of the round before."""
    pieces = [write(node, profile=profile, at_start=at == 0) for at, node in enumerate(nodes)]
    assert pieces == [write(node, profile=profile, at_start=at == 0) for at, node in enumerate(nodes)]
    before = b""
    for end in range(1, len(nodes) + 1):
        joined = b",".join(piece.body for piece in pieces[:end] if piece.body)
        assert joined.startswith(before)
        if end % 2 == 0:
            whole = write([item for node in nodes[:end] for item in node], profile=profile)
            assert (whole.lead, whole.body) == (pieces[0].lead, joined)
        before = joined


@given(nodes=paths())
def test_every_result_stands_behind_the_message_that_called(nodes: list[list[dict[str, Any]]]) -> None:
    """OpenAI's rule, and every template's."""
    messages = read(write([item for node in nodes for item in node]))
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        waiting = {each["id"] for each in message.get("tool_calls", ())}
    assert any(message["role"] == "user" for message in messages)


def test_a_profile_of_ones_own_is_enough() -> None:
    """Ours: the transcript looks at facts, never at a profile's name."""
    items = decode_items(msgspec.json.encode([user("a"), thought("t"), said("b")]))
    segment = transcribe(items, Profile(name="mine", reasoning_field="thinking"), at_start=True)
    assert read(segment)[1] == {"role": "assistant", "content": "b", "thinking": "t"}


def test_an_image_detail_that_the_server_cannot_be_told_is_warned_of() -> None:
    """Ours: nothing is lost silently."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "original"}
    items = decode_items(msgspec.json.encode([{"role": "user", "content": [image]}]))
    (warning,) = transcribe(items, Profile(), at_start=True).warnings
    assert "'original'" in warning
