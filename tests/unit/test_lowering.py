"""Calls, outputs and messages of every kind, in the words that a chat model is told."""

from typing import Any

import msgspec
import pytest

from antiphon.context import lower_call, lower_message, lower_output
from antiphon.protocol.content import InputImage, InputText
from antiphon.protocol.items import Item, decode_item, get_call_id, is_call
from tests.unit.test_items import ALL

IMAGE = "data:image/png;base64,AA=="


def item(**fields: Any) -> Item:
    """An item as it arrives."""
    return decode_item(msgspec.json.encode(fields), "input[0]")


def call_of(**fields: Any) -> tuple[str, str, str]:
    """Id, name and arguments of its call."""
    call = lower_call(item(**fields))
    assert call is not None
    return call.call_id, call.name, call.arguments


def result_of(**fields: Any) -> Any:
    """The content of its result."""
    output = lower_output(item(**fields))
    assert output is not None
    return output.content


@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{bad"}, ("1", "f", "{bad")),
        (
            {"type": "function_call", "call_id": "1", "name": "say", "namespace": "n", "arguments": "{}"},
            ("1", "n__say", "{}"),
        ),
        (
            {"type": "custom_tool_call", "call_id": "1", "name": "c", "input": 'a\n"b"'},
            ("1", "c", '{"input":"a\\n\\"b\\""}'),
        ),
        (
            {"type": "tool_search_call", "call_id": "1", "execution": "client", "arguments": {"query": "q"}},
            ("1", "tool_search", '{"query":"q"}'),
        ),
        (
            {"type": "tool_search_call", "call_id": "1", "arguments": '{"query":"q"}'},
            ("1", "tool_search", '{"query":"q"}'),
        ),
        (
            {
                "type": "local_shell_call",
                "call_id": "1",
                "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5},
            },
            ("1", "local_shell", '{"command":["ls"],"timeout_ms":5}'),
        ),
        (
            {
                "type": "shell_call",
                "call_id": "1",
                "action": {"commands": ["ls", "pwd"], "max_output_length": 9},
            },
            ("1", "shell", '{"commands":["ls","pwd"],"max_output_length":9}'),
        ),
        (
            {
                "type": "apply_patch_call",
                "call_id": "1",
                "status": "completed",
                "operation": {"type": "update_file", "path": "a", "diff": "+x"},
            },
            ("1", "apply_patch", '{"type":"update_file","path":"a","diff":"+x"}'),
        ),
        (
            {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "t", "arguments": '{"a":1}'},
            ("mcp_1", "s__t", '{"a":1}'),
        ),
        (
            {
                "type": "mcp_approval_request",
                "id": "mcpr_1",
                "server_label": "s",
                "name": "t",
                "arguments": "{}",
            },
            ("mcpr_1", "s__t", "{}"),
        ),
        (
            {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}},
            ("ws_1", "web_search", '{"query":"q"}'),
        ),
        (
            {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "queries": ["a", "b"]}},
            ("ws_1", "web_search", '{"query":"a; b"}'),
        ),
        (
            {
                "type": "web_search_call",
                "id": "ws_1",
                "action": {"type": "find_in_page", "url": "http://a.b", "pattern": "p"},
            },
            ("ws_1", "web_search", '{"open_page":"http://a.b","pattern":"p"}'),
        ),
        (
            {
                "type": "web_search_call",
                "id": "ws_1",
                "action": {"type": "open_page", "url": "http://a.b"},
            },
            ("ws_1", "web_search", '{"open_page":"http://a.b"}'),
        ),
        ({"type": "web_search_call", "id": "ws_1"}, ("ws_1", "web_search", "{}")),
    ],
)
def test_every_call_is_a_call_of_a_function(fields: Any, call: Any) -> None:
    """Spec: items; a chat model knows functions alone."""
    assert call_of(**fields) == call


OUT = {"stdout": "a\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
ERR = {"stdout": "", "stderr": "bad", "outcome": {"type": "exit", "exit_code": 2}}
LATE = {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"type": "function_call_output", "call_id": "1", "output": "x"}, "x"),
        (
            {
                "type": "custom_tool_call_output",
                "call_id": "1",
                "output": [{"type": "input_text", "text": "x"}],
            },
            [InputText("x")],
        ),
        ({"type": "local_shell_call_output", "id": "call_1", "output": "{}"}, "{}"),
        ({"type": "shell_call_output", "call_id": "1", "output": [OUT]}, "[exit code 0]\na\n"),
        (
            {"type": "shell_call_output", "call_id": "1", "output": [ERR, LATE]},
            "[command 1: exit code 2]\n[stderr]\nbad\n\n[command 2: timed out]",
        ),
        ({"type": "shell_call_output", "call_id": "1", "output": []}, ""),
        ({"type": "apply_patch_call_output", "call_id": "1", "status": "completed"}, "[completed]"),
        (
            {"type": "apply_patch_call_output", "call_id": "1", "status": "failed", "output": "no"},
            "[failed]\nno",
        ),
        ({"type": "tool_search_output", "call_id": "1", "tools": []}, "No tool was found."),
        (
            {
                "type": "tool_search_output",
                "call_id": "1",
                "tools": [
                    {"type": "function", "name": "f", "description": "F."},
                    {"type": "namespace", "name": "n", "description": "N.", "tools": [{"name": "say"}]},
                ],
            },
            "Found; they can be called now:\n- f: F.\n- n__say",
        ),
        (
            {"type": "mcp_call", "server_label": "s", "name": "t", "arguments": "{}", "output": "o"},
            "o",
        ),
        (
            {"type": "mcp_call", "server_label": "s", "name": "t", "arguments": "{}", "error": "e"},
            "Error: e",
        ),
        (
            {
                "type": "mcp_call",
                "server_label": "s",
                "name": "t",
                "arguments": "{}",
                "error": {"type": "mcp_protocol_error", "code": 1, "message": "gone"},
            },
            "Error: gone",
        ),
        (
            {
                "type": "mcp_call",
                "server_label": "s",
                "name": "t",
                "arguments": "{}",
                "error": {"type": "odd"},
            },
            'Error: {"type":"odd"}',
        ),
        ({"type": "mcp_call", "server_label": "s", "name": "t", "arguments": "{}"}, "[no result]"),
        (
            {
                "type": "web_search_call",
                "results": [
                    {"url": "http://a.b", "title": "A", "snippet": "said"},
                    {"url": "http://c.d", "text": "told"},
                ],
            },
            "[1] A\nhttp://a.b\nsaid\n\n[2] http://c.d\ntold",
        ),
        (
            {"type": "web_search_call", "action": {"type": "search", "sources": [{"url": "http://a.b"}]}},
            "[1] http://a.b",
        ),
        ({"type": "web_search_call", "status": "failed"}, "Error: the search failed"),
        ({"type": "web_search_call", "status": "failed", "error": "gone"}, "Error: gone"),
    ],
)
def test_every_output_is_a_result(fields: Any, content: Any) -> None:
    """Spec: items; shell outputs tell how each command ended."""
    assert result_of(**fields) == content


def test_an_async_call_has_a_stand_in_that_names_it() -> None:
    """Spec: async tools; the result comes later, under the same id."""
    fields = {"call_id": "c9", "name": "f", "async": True}
    for more in ({"type": "function_call", "arguments": "{}"}, {"type": "custom_tool_call", "input": "x"}):
        call = lower_call(item(**fields, **more))
        assert call is not None
        assert call.is_async
        told = result_of(**fields, **more)
        assert told.startswith("[running; the result comes later")
        assert "c9" in told
    assert lower_output(item(type="function_call", call_id="c9", name="f", arguments="{}")) is None


def test_a_call_without_an_id_has_one_made_from_its_bytes() -> None:
    """Ours: the same item gives the same bytes."""
    fields = {"type": "mcp_call", "server_label": "s", "name": "t", "arguments": "{}", "output": "o"}
    call, output = lower_call(item(**fields)), lower_output(item(**fields))
    assert call is not None
    assert output is not None
    assert call.call_id == output.call_id
    assert call == lower_call(item(**fields))
    assert call.call_id != call_of(**{**fields, "output": "p"})[0]


@pytest.mark.parametrize("execution", ["server", None])
def test_a_search_that_another_server_ran_is_no_call(execution: str | None) -> None:
    """Spec: such items have no call id; there is nothing for a client to answer."""
    assert lower_call(item(type="tool_search_call", execution=execution, arguments={})) is None
    assert lower_output(item(type="tool_search_output", execution=execution, tools=[])) is None


def test_a_message_between_agents_is_told_with_its_ends() -> None:
    """Codex: agent_message."""
    content = [
        {"type": "input_text", "text": "hi"},
        {"type": "input_image", "image_url": IMAGE},
        {"type": "encrypted_content", "encrypted_content": "x"},
    ]
    told = lower_message(item(type="agent_message", author="a", recipient="b", content=content))
    assert told is not None
    assert told.mark == "agent message from a to b"
    assert told.content == [InputText("hi"), InputImage(image_url=IMAGE), InputText("[encrypted_content]")]
    bare = lower_message(item(type="agent_message", content="hi"))
    assert bare is not None
    assert (bare.mark, bare.content) == ("agent message", "hi")


def test_a_denied_call_is_told_and_an_allowed_one_is_not() -> None:
    """Ours: the call that was allowed follows as an item of its own."""
    denied = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False}
    told = lower_message(item(**denied, reason="too dear"))
    assert told is not None
    assert told.content == ("The user does not allow the call mcpr_1. Do not make it again. Reason: too dear")
    assert lower_message(item(**{**denied, "approve": True})) is None


@pytest.mark.parametrize("example", ALL, ids=lambda value: str(value["type"]))
def test_no_item_of_any_type_breaks_it(example: dict[str, Any]) -> None:
    """Ours: a stored history may hold whatever another server made."""
    found = decode_item(msgspec.json.encode(example), "input[0]")
    call, output = lower_call(found), lower_output(found)
    lower_message(found)
    if call is not None and get_call_id(found) is not None:
        assert call.call_id == get_call_id(found)
        assert is_call(found)
    if output is not None:
        assert isinstance(output.content, str | list)
