"""Calls of every kind in a chat history: shells, MCP, searches, late results, and what says nothing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import Segment
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from antiphon.protocol.items import decode_stored_item
from tests.unit.test_chat_transcript import IMAGE, call, output, read, result, said, system, thought, user
from tests.unit.test_items import ALL

TOOLS = {"type": "additional_tools", "role": "developer", "tools": []}
LIST = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []}
MCP = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "s",
    "name": "t",
    "arguments": "{}",
    "output": "o",
}
WEB = {
    "type": "web_search_call",
    "id": "ws_1",
    "action": {"type": "search", "query": "q"},
    "results": [{"url": "http://a.b", "title": "A", "snippet": "said"}],
}
ASKED = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "s",
    "name": "t",
    "arguments": "{}",
}
APPROVED = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
DENIED = {**APPROVED, "approve": False}
WAITING = "[running; the result comes later as the result of call 1]"
LATER = {**call("1"), "async": True}


NATIVE = Profile()


def write(
    items: list[dict[str, Any]],
    *,
    profile: Profile = NATIVE,
    at_start: bool = False,
    **given: Any,
) -> Segment:
    """A stored history."""
    stored = [decode_stored_item(msgspec.json.encode(item)) for item in items]
    return transcribe(stored, profile, at_start=at_start, **given)


def called(*calls: tuple[str, str, str], content: str = "") -> dict[str, Any]:
    """An assistant message with calls: id, name, arguments."""
    sent = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": sent}


SHELL = {"type": "shell_call", "call_id": "1", "action": {"commands": ["ls"]}}
SHELL_OUTPUT = {
    "type": "shell_call_output",
    "call_id": "1",
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}],
}
CUSTOM = {"type": "custom_tool_call", "call_id": "2", "name": "c", "namespace": "n", "input": "raw"}
CUSTOM_OUTPUT = {
    "type": "custom_tool_call_output",
    "call_id": "2",
    "output": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": IMAGE}],
}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        (
            [SHELL, CUSTOM, CUSTOM_OUTPUT, SHELL_OUTPUT, said("done")],
            [
                called(("1", "shell", '{"commands":["ls"]}'), ("2", "n__c", '{"input":"raw"}')),
                result("2", "x\n[image: see below]"),
                result("1", "[exit code 1]\na"),
                user(
                    [
                        {"type": "text", "text": "[image from the result of call 2]"},
                        {"type": "image_url", "image_url": {"url": IMAGE}},
                    ]
                ),
                said("done"),
            ],
        ),
        # A call that the server ran holds its result; the model went on behind it.
        (
            [said("a"), MCP, said("b"), WEB, said("c")],
            [
                called(("mcp_1", "s__t", "{}"), content="a"),
                result("mcp_1", "o"),
                called(("ws_1", "web_search", '{"query":"q"}'), content="b"),
                result("ws_1", "[1] A\nhttp://a.b\nsaid"),
                said("c"),
            ],
        ),
        # Items that bring tools say nothing.
        ([TOOLS, LIST, user("a")], [user("a")]),
        # The model made the call; the user's word decides whether it is made again.
        (
            [ASKED, APPROVED, MCP],
            [
                called(("mcpr_1", "s__t", "{}")),
                result("mcpr_1", "[the user is asked for approval; the call is made once it is given]"),
                called(("mcp_1", "s__t", "{}")),
                result("mcp_1", "o"),
            ],
        ),
        (
            [DENIED],
            [user("[approval denied]\nThe user does not allow the call mcpr_1. Do not make it again.")],
        ),
        # An async call has a stand-in at once; its result comes as a message, and may come twice.
        (
            [LATER, said("Started."), user("ok"), output("1", "x"), output("1", "y")],
            [
                called(("1", "f", "{}")),
                result("1", WAITING),
                said("Started."),
                user("ok"),
                user("[result of call 1]\nx"),
                user("[result of call 1]\ny"),
            ],
        ),
        # A call that is waited for may stand beside it.
        (
            [call("0"), LATER, output("0", "x")],
            [called(("0", "f", "{}"), ("1", "f", "{}")), result("1", WAITING), result("0", "x")],
        ),
        (
            [
                {
                    "type": "agent_message",
                    "author": "a",
                    "content": [
                        {"type": "input_text", "text": "see"},
                        {"type": "input_image", "image_url": IMAGE},
                    ],
                }
            ],
            [
                user(
                    [
                        {"type": "text", "text": "[agent message from a]"},
                        {"type": "text", "text": "see"},
                        {"type": "image_url", "image_url": {"url": IMAGE}},
                    ]
                )
            ],
        ),
        ([{**said("a"), "phase": "commentary"}, {**said("b"), "phase": "final_answer"}], [said("a\n\nb")]),
        (
            [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}],
            [{"role": "assistant", "content": "", "reasoning_content": "t"}],
        ),
    ],
)
def test_a_history_with_tools_becomes_these_messages(items: Any, messages: Any) -> None:
    """Ours; spec: items, async tools."""
    segment = write(items)
    assert (read(segment), segment.warnings) == (messages, ())


def test_a_late_result_of_an_earlier_round_is_a_message() -> None:
    """Spec: async tools; nothing of what the model has seen may change."""
    late = write([user("a"), output("1", "x"), output("0", "y")], async_calls={"1"})
    assert read(late) == [result("0", "y"), user("a"), user("[result of call 1]\nx")]


def test_tools_before_the_system_text_leave_it_first() -> None:
    """Codex: newer models get `additional_tools` as the first item, the base prompt behind it."""
    segment = write([TOOLS, system("a", "developer"), LIST, system("b"), user("c")], at_start=True)
    assert (segment.lead, read(segment)) == ("a\n\nb", [user("c")])


@pytest.mark.parametrize("tools", ["schema", "none"])
def test_a_model_without_tool_messages_is_told_in_words(tools: Any) -> None:
    """Measured for functions: such models use results told so."""
    late = {**call("9"), "async": True}
    items = [said("a"), SHELL, CUSTOM, SHELL_OUTPUT, CUSTOM_OUTPUT, MCP, late, said("b"), output("9", "x")]
    told = read(write(items, profile=Profile(tools=tools)))
    assert [message["role"] for message in told] == [
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert (
        told[0]["content"]
        == 'a\n\nI called shell with {"commands":["ls"]}.\n\nI called n__c with {"input":"raw"}.'
    )
    assert told[1]["content"][0]["text"] == (
        "Result of shell: [exit code 1]\na\n\nResult of n__c: x\n[image: see below]"
    )
    assert told[3]["content"] == "Result of s__t: o"
    assert told[5]["content"] == "Result of f: " + WAITING.replace("call 1", "call 9")
    assert told[7]["content"] == "[result of call 9]\nx"


def test_what_cannot_be_told_is_left_out_and_named() -> None:
    """Ours: a history that another server made is carried on as far as it can be."""
    segment = write(
        [
            user("a"),
            {"type": "computer_call", "call_id": "1", "action": {"type": "screenshot"}},
            {"type": "slug:thing", "id": "x"},
            {"type": "tool_search_call", "execution": "server", "arguments": {}},
            {"type": "reasoning", "summary": [], "encrypted_content": "x"},
            user([{"type": "input_file", "file_id": "f", "filename": "a.pdf"}]),
        ]
    )
    assert read(segment) == [user("a"), user("[a.pdf: not shown]")]
    assert [warning.split("'")[1] if "'" in warning else warning[:9] for warning in segment.warnings] == [
        "computer_call",
        "slug:thing",
        "A search ",
        "Reasoning",
        "input_file",
    ]


@pytest.mark.parametrize("tools", ["native", "schema"])
@pytest.mark.parametrize("example", ALL, ids=lambda value: str(value["type"]))
def test_every_type_of_item_has_a_place_or_a_warning(example: dict[str, Any], tools: Any) -> None:
    """Ours: nothing is lost silently, and no stored item breaks a history."""
    segment = write([example], profile=Profile(tools=tools))
    silent = {"additional_tools", "configuration_update", "mcp_list_tools", "mcp_approval_response"}
    assert bool(segment.body or segment.warnings) or example["type"] in silent


MADE = [said("x"), thought("y"), MCP, WEB, {**MCP, "id": "mcp_2"}, ASKED, LIST]


@st.composite
def paths(draw: Any) -> list[list[dict[str, Any]]]:
    """The nodes of a path whose calls are hosted, async, or answered in the next node."""
    nodes: list[list[dict[str, Any]]] = []
    waiting: list[str] = []
    late: list[str] = []
    for number in range(draw(st.integers(1, 4))):
        given_items = [output(call_id) for call_id in waiting]
        given_items += draw(st.lists(st.sampled_from([user("a"), DENIED, APPROVED, TOOLS]), max_size=2))
        given_items += (
            [output(call_id) for call_id in draw(st.lists(st.sampled_from(late), max_size=2))] if late else []
        )
        made = draw(st.lists(st.sampled_from(MADE), max_size=4))
        if draw(st.booleans()):
            made.append({**call(f"late{number}"), "async": True})
            late.append(f"late{number}")
            made += draw(st.lists(st.sampled_from(MADE), max_size=2))
        waiting = [f"{number}.{each}" for each in range(draw(st.integers(0, 2)))]
        made += [call(call_id) for call_id in waiting]
        nodes += [[*given_items, user("q")] if number else [user("q"), *given_items], made]
    return nodes


@given(nodes=paths(), profile=st.sampled_from(sorted(PROFILES)), tools=st.sampled_from(["native", "schema"]))
def test_a_path_with_tools_is_the_same_bytes_node_by_node_and_in_one(
    nodes: list[list[dict[str, Any]]], profile: str, tools: Any
) -> None:
    """Ours: prefix stability. Late results and hosted calls change nothing of what came before."""
    facts = msgspec.structs.replace(PROFILES[profile], tools=tools)
    names: dict[str, str] = {}
    late: set[str] = set()
    pieces = []
    for at, node in enumerate(nodes):
        pieces.append(write(node, profile=facts, at_start=at == 0, open_calls=names, async_calls=late).body)
        late |= {item["call_id"] for item in node if item.get("async")}
        names = {item["call_id"]: "f" for item in node if item.get("type") == "function_call"}
    whole = write([item for node in nodes for item in node], profile=facts, at_start=True)
    assert whole.body == b",".join(piece for piece in pieces if piece)


@given(nodes=paths())
def test_every_result_still_stands_behind_its_call(nodes: list[list[dict[str, Any]]]) -> None:
    """Chat Completions: each call of a message has its result before anything else is said."""
    messages = read(write([item for node in nodes for item in node], at_start=True))
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        waiting = [each["id"] for each in message.get("tool_calls", ())]
