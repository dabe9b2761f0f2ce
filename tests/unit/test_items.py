"""Items: every type is decoded and kept byte for byte, listed in its normal form, and refused by the book."""

from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from antiphon.protocol import items
from antiphon.protocol.content import InputText
from antiphon.protocol.errors import RequestError
from antiphon.protocol.hosted_items import McpApprovalRequest
from antiphon.protocol.items import Item, Message, UnknownItem

#: One item of every type, in its full input form.
EXAMPLES: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
            {"type": "input_file", "file_id": "file_1", "filename": "a.pdf"},
        ],
    },
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "phase": "final_answer",
        "content": [
            {
                "type": "output_text",
                "text": "hello",
                "annotations": [
                    {
                        "type": "url_citation",
                        "url": "http://a.b",
                        "title": "t",
                        "start_index": 0,
                        "end_index": 1,
                    },
                    {"type": "file_citation", "file_id": "f", "filename": "n", "index": 0},
                ],
                "logprobs": [
                    {
                        "token": "a",
                        "bytes": [97],
                        "logprob": -0.5,
                        "top_logprobs": [{"token": "a", "bytes": [97], "logprob": -0.5}],
                    }
                ],
            },
            {"type": "refusal", "refusal": "no"},
        ],
    },
    {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}", "id": "fc_1"},
    {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}", "async": True},
    {"type": "function_call_output", "call_id": "call_1", "output": "done"},
    {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [
            {"type": "input_text", "text": "done"},
            {"type": "input_image", "image_url": "http://a.b/c.png"},
        ],
    },
    {"type": "custom_tool_call", "call_id": "call_1", "name": "f", "input": "raw"},
    {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "s"}],
        "content": [{"type": "reasoning_text", "text": "r"}],
        "encrypted_content": "blob",
    },
    {"type": "compaction", "encrypted_content": "blob"},
    {"type": "compaction_summary", "encrypted_content": "blob"},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "additional_tools", "role": "developer", "tools": []},
    {"type": "tool_search_call", "arguments": {"query": "q"}, "call_id": "call_1", "execution": "client"},
    {"type": "tool_search_output", "tools": [], "call_id": "call_1", "execution": "client"},
    {"type": "program", "id": "prog_1", "call_id": "call_1", "code": "x", "fingerprint": "f"},
    {"type": "program_output", "call_id": "call_1", "result": "1", "status": "completed"},
    {
        "type": "file_search_call",
        "queries": ["q"],
        "results": [{"file_id": "f", "filename": "n", "score": 0.5, "text": "t", "attributes": {}}],
    },
    {
        "type": "web_search_call",
        "action": {"type": "search", "query": "q", "sources": [{"type": "url", "url": "http://a.b"}]},
    },
    {"type": "web_search_call", "action": {"type": "open_page", "url": "http://a.b"}},
    {"type": "web_search_call", "action": {"type": "find_in_page", "url": "http://a.b", "pattern": "p"}},
    *(
        {"type": "computer_call", "call_id": "call_1", "action": action}
        for action in (
            {"type": "click", "button": "left", "x": 1, "y": 2},
            {"type": "double_click", "x": 1, "y": 2, "keys": []},
            {"type": "drag", "path": [{"x": 1, "y": 2}]},
            {"type": "keypress", "keys": ["a"]},
            {"type": "move", "x": 1, "y": 2},
            {"type": "screenshot"},
            {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 3},
            {"type": "type", "text": "t"},
            {"type": "wait"},
        )
    ),
    {
        "type": "computer_call_output",
        "call_id": "call_1",
        "output": {"type": "computer_screenshot", "image_url": "http://a.b/c.png"},
    },
    {
        "type": "code_interpreter_call",
        "container_id": "cntr_1",
        "code": "1",
        "outputs": [{"type": "logs", "logs": "1"}, {"type": "image", "url": "http://a.b"}],
    },
    {"type": "image_generation_call", "result": "AA=="},
    {
        "type": "local_shell_call",
        "call_id": "call_1",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    },
    {"type": "local_shell_call_output", "id": "call_1", "output": "{}"},
    {"type": "shell_call", "call_id": "call_1", "action": {"commands": ["ls"]}},
    {
        "type": "shell_call_output",
        "call_id": "call_1",
        "output": [{"stdout": "o", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    {
        "type": "apply_patch_call",
        "call_id": "call_1",
        "status": "completed",
        "operation": {"type": "create_file", "path": "a", "diff": "+a"},
    },
    {
        "type": "apply_patch_call",
        "call_id": "call_1",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a"},
    },
    {"type": "apply_patch_call_output", "call_id": "call_1", "status": "failed", "output": "no"},
    {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t", "input_schema": {}}]},
    {"type": "mcp_call", "server_label": "s", "name": "t", "arguments": "{}", "output": "o"},
    {"type": "mcp_approval_request", "server_label": "s", "name": "t", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
]
CONTROLS: list[dict[str, Any]] = [
    {
        "type": "agent_message",
        "author": "lead",
        "recipient": "worker",
        "content": [{"type": "input_text", "text": "hi"}],
    },
    {"type": "compaction_trigger"},
    {"type": "item_reference", "id": "msg_1"},
]
ALL = EXAMPLES + CONTROLS


def decode(value: Any) -> Item:
    return items.decode_item(msgspec.json.encode(value), "input[0]")


def name_example(value: dict[str, Any]) -> str:
    return str(value["type"])


def test_there_is_an_example_of_every_type() -> None:
    """Ours: the tables below cover the whole union."""
    assert {example["type"] for example in ALL} == set(items.ITEM_TYPES)


@pytest.mark.parametrize("example", ALL, ids=name_example)
def test_every_type_is_decoded_and_keeps_its_bytes(example: dict[str, Any]) -> None:
    """Spec: items. The typed view holds all that was sent, and the bytes are what arrived."""
    raw = msgspec.json.encode(example)
    item = items.decode_item(raw, "input[0]")
    assert (item.type, item.raw) == (example["type"], raw)
    assert msgspec.to_builtins(item.value) == example
    assert items.decode_stored_item(raw) == item
    assert items.encode_item(item.value).value == item.value  # type: ignore[arg-type]


@pytest.mark.parametrize("example", ALL, ids=name_example)
def test_unknown_fields_are_kept_and_nulls_on_optional_fields_are_absent(example: dict[str, Any]) -> None:
    """Ours: an item's unknown fields are replayed; null on an optional field equals absent."""
    optional = {
        name: None
        for name in items.STRUCTS[example["type"]].__struct_encode_fields__
        if name not in example and name != "call_id"
    }
    raw = msgspec.json.encode({**example, **optional, "x_new": {"deep": [1]}})
    item = items.decode_item(raw, "input[0]")
    assert item == Item(item.type, raw, decode(example).value)
    form = msgspec.json.decode(items.normalise_item(item, "id_1"))
    assert form.pop("x_new") == {"deep": [1]}
    assert form == msgspec.json.decode(items.normalise_item(decode(example), "id_1"))


@pytest.mark.parametrize("example", EXAMPLES, ids=name_example)
def test_the_normal_form_of_every_type_validates_strictly_in_the_official_types(
    example: dict[str, Any],
) -> None:
    """Spec: list views. What we list, the official package reads without coercion."""
    item = decode(example)
    form = items.normalise_item(item, items.derive_item_id(item.type, "resp_ab12", 3))
    value = TypeAdapter[Any](ResponseItem).validate_json(form, strict=True)
    shown = msgspec.json.decode(form)
    assert value.to_dict() == shown
    assert shown["id"] == example.get("id", items.derive_item_id(item.type, "resp_ab12", 3))
    # A listed item can be sent again.
    assert items.decode_item(form, "input[0]").type in (item.type, "compaction")


@pytest.mark.parametrize("example", CONTROLS, ids=name_example)
def test_control_items_have_a_normal_form_too(example: dict[str, Any]) -> None:
    """Ours."""
    form = items.normalise_item(decode(example), "x_1")
    assert msgspec.json.decode(form) == {"id": "x_1", **example}


def test_string_content_is_one_part_in_the_normal_form() -> None:
    """Spec: list views, measured live: input_text for a user, output_text for an assistant."""
    user = items.normalise_item(decode({"role": "user", "content": "hi", "x": 1}), "msg_1")
    assert user == (
        b'{"id":"msg_1","type":"message","role":"user","content":[{"type":"input_text","text":"hi"}],'
        b'"x":1,"status":"completed"}'
    )
    assistant = decode({"role": "assistant", "content": "hi", "phase": None, "created_by": None})
    assert msgspec.json.decode(items.normalise_item(assistant, "msg_1")) == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "created_by": None,
        "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
        "status": "completed",
    }


def test_values_that_no_decoder_reads_survive_the_normal_form() -> None:
    """Ours: a number out of range in an unknown field is replayed, never decoded."""
    raw = b'{"role":"user","content":"hi","x":1e999}'
    form = items.normalise_item(items.decode_item(raw, "input[0]"), "msg_1")
    assert b'"x":1e999' in form


@pytest.mark.parametrize(
    ("sent", "item_type"),
    [
        ({"role": "user", "content": "hi"}, "message"),
        ({"type": None, "role": "user", "content": "hi"}, "message"),
        ({"id": "msg_1"}, "item_reference"),
        ({"type": None, "id": "msg_1"}, "item_reference"),
    ],
)
def test_an_item_without_a_type_is_a_message_or_a_reference(sent: dict[str, Any], item_type: str) -> None:
    """Spec: items; the type may be omitted or null."""
    item = decode(sent)
    assert item.type == item_type
    assert items.decode_stored_item(item.raw) == item


def test_a_stored_item_of_an_unknown_type_is_kept() -> None:
    """Ours: the codec keeps what it does not know."""
    raw = b'{"type":"slug:thing","id":"x_1","a":1}'
    item = items.decode_stored_item(raw)
    assert item == Item("slug:thing", raw, UnknownItem("slug:thing", "x_1"))
    assert items.decode_item(raw, "input[0]") == item
    assert items.normalise_item(item, "x_2") == b'{"id":"x_1","type":"slug:thing","a":1}'
    broken = items.decode_stored_item(b'{"type":"function_call"}')
    assert broken.value == UnknownItem("function_call")


@pytest.mark.parametrize(
    ("sent", "view"),
    [
        ({"type": "reasoning", "summary": [], "encrypted_content": 5}, items.Reasoning(summary=[])),
        ({"type": "reasoning", "summary": "x"}, UnknownItem("reasoning")),
        ({"type": "message", "role": "tool", "content": "x"}, UnknownItem("message")),
        (
            {"type": "message", "role": "assistant", "content": [{"type": "output_audio"}, 5]},
            items.Message(
                role="assistant",
                content=[InputText("[output_audio: not shown]"), InputText("[part: not shown]")],
            ),
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "status": "incomplete", "operation": {"type": "x"}},
            UnknownItem("apply_patch_call"),
        ),
        (
            {"type": "mcp_approval_request", "id": 7, "server_label": "s", "name": "n", "arguments": "{}"},
            McpApprovalRequest(server_label="s", name="n", arguments="{}"),
        ),
        (
            {"type": "function_call", "call_id": "c" * 65, "name": "a b", "arguments": "{}", "status": "odd"},
            items.FunctionCall(call_id="c" * 65, name="a b", arguments="{}", status="odd"),  # type: ignore[arg-type]
        ),
    ],
)
def test_the_view_of_a_stored_item_holds_no_value_of_another_type(sent: dict[str, Any], view: Any) -> None:
    """Ours: a server may answer anything; bounds and the words of a status are not held to."""
    raw = msgspec.json.encode(sent)
    assert items.decode_stored_item(raw) == Item(sent["type"], raw, view)


@pytest.mark.parametrize("item_id", [None, 7, "", "a" * 65, {}])
def test_an_item_of_an_unknown_type_may_have_any_id(item_id: Any) -> None:
    """Ours: only an id that an item could have is one under which it is found."""
    assert decode({"type": "bogus", "id": item_id}).value == UnknownItem("bogus")


def test_an_unknown_type_is_refused_where_nobody_knows_it() -> None:
    """Spec: request-shape errors; the text lists the types that are known."""
    items.check_known(decode({"role": "user", "content": "hi"}), "input[0]")
    with pytest.raises(RequestError) as caught:
        items.check_known(decode({"type": "bogus"}), "input[3]")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "input[3]")
    assert caught.value.message == (
        "Invalid value: 'bogus'. Supported values are: "
        + ", ".join(f"'{name}'" for name in items.ITEM_TYPES[:-1])
        + f", and '{items.ITEM_TYPES[-1]}'."
    )


ASSISTANT_PARTS = "'output_text' and 'refusal'"
INPUT_PARTS = "'input_text', 'input_image', 'input_file', 'input_audio', and 'input_video'"
ALL_PARTS = INPUT_PARTS.replace("and 'input_video'", "'input_video', 'output_text', and 'refusal'")
ROLES = "'assistant', 'system', 'developer', and 'user'"
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
ERRORS: list[tuple[Any, str, str, str]] = [
    (
        7,
        "invalid_type",
        "input[0]",
        "Invalid type for 'input[0]': expected an object, but got an integer instead.",
    ),
    (
        {"content": "hi"},
        "missing_required_parameter",
        "input[0].type",
        "Missing required parameter: 'input[0].type'.",
    ),
    (
        {"type": 7},
        "invalid_type",
        "input[0].type",
        "Invalid type for 'input[0].type': expected a string, but got an integer instead.",
    ),
    (
        {"role": "bogus", "content": "hi"},
        "invalid_value",
        "input[0]",
        f"Invalid value: 'bogus'. Supported values are: {ROLES}.",
    ),
    (
        {"role": 7, "content": "hi"},
        "invalid_type",
        "input[0].role",
        "Invalid type for 'input[0].role': expected a string, but got an integer instead.",
    ),
    (
        {"role": "user"},
        "missing_required_parameter",
        "input[0].content",
        "Missing required parameter: 'input[0].content'.",
    ),
    (
        {"role": "user", "content": 7},
        "invalid_type",
        "input[0].content",
        (
            "Invalid type for 'input[0].content': expected one of a string or array of objects, "
            "but got an integer instead."
        ),
    ),
    (
        {"role": "user", "content": [7]},
        "invalid_type",
        "input[0].content[0]",
        "Invalid type for 'input[0].content[0]': expected an object, but got an integer instead.",
    ),
    (
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        "invalid_value",
        "input[0].content[0].type",
        f"Invalid value: 'text'. Supported values are: {ALL_PARTS}.",
    ),
    (
        {"role": "user", "content": [{"text": "hi"}]},
        "missing_required_parameter",
        "input[0].content[0].type",
        "Missing required parameter: 'input[0].content[0].type'.",
    ),
    (
        {"role": "user", "content": [{"type": "input_text"}]},
        "missing_required_parameter",
        "input[0].content[0].text",
        "Missing required parameter: 'input[0].content[0].text'.",
    ),
    (
        {"role": "user", "content": [{"type": "input_text", "text": None}]},
        "invalid_type",
        "input[0].content[0].text",
        "Invalid type for 'input[0].content[0].text': expected a string, but got null instead.",
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "image_url": "x", "detail": "huge"}]},
        "invalid_value",
        "input[0].content[0].detail",
        "Invalid value: 'huge'. Supported values are: 'auto', 'low', 'high', and 'original'.",
    ),
    (
        {"role": "assistant", "content": [{"type": "input_text", "text": "hi"}]},
        "invalid_value",
        "input[0].content[0]",
        f"Invalid value: 'input_text'. Supported values are: {ASSISTANT_PARTS}.",
    ),
    (
        {"role": "user", "content": [{"type": "output_text", "text": "hi"}]},
        "invalid_value",
        "input[0].content[0]",
        f"Invalid value: 'output_text'. Supported values are: {INPUT_PARTS}.",
    ),
    (
        {"role": "user", "content": "hi", "phase": "commentary"},
        "unknown_parameter",
        "input[0].phase",
        "Unknown parameter: 'input[0].phase'.",
    ),
    (
        {"type": "message", "id": "fc_1", "role": "user", "content": "hi"},
        "invalid_value",
        "input[0].id",
        "Invalid 'input[0].id': 'fc_1'. Expected an ID that begins with 'msg'.",
    ),
    (
        {**CALL, "id": "x"},
        "invalid_value",
        "input[0].id",
        "Invalid 'input[0].id': 'x'. Expected an ID that begins with 'fc'.",
    ),
    (
        {**CALL, "id": "fc_" + "a" * 62},
        "string_above_max_length",
        "input[0].id",
        (
            "Invalid 'input[0].id': string too long. Expected a string with maximum length 64, "
            "but got a string with length 65 instead."
        ),
    ),
    (
        {**CALL, "call_id": ""},
        "empty_string",
        "input[0].call_id",
        (
            "Invalid 'input[0].call_id': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead."
        ),
    ),
    (
        {**CALL, "call_id": "a" * 65},
        "string_above_max_length",
        "input[0].call_id",
        (
            "Invalid 'input[0].call_id': string too long. Expected a string with maximum length 64, "
            "but got a string with length 65 instead."
        ),
    ),
    (
        {"type": "function_call_output", "output": "x"},
        "missing_required_parameter",
        "input[0].call_id",
        "Missing required parameter: 'input[0].call_id'.",
    ),
    (
        {**CALL, "status": "done"},
        "invalid_value",
        "input[0].status",
        "Invalid value: 'done'. Supported values are: 'in_progress', 'completed', and 'incomplete'.",
    ),
    (
        {**CALL, "arguments": {}},
        "invalid_type",
        "input[0].arguments",
        "Invalid type for 'input[0].arguments': expected a string, but got an object instead.",
    ),
    (
        {"role": "user", "content": "a" * 10_485_761},
        "string_above_max_length",
        "input[0].content",
        (
            "Invalid 'input[0].content': string too long. Expected a string with maximum length 10485760, "
            "but got a string with length 10485761 instead."
        ),
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "image_url": "a" * 20_971_521}]},
        "string_above_max_length",
        "input[0].content[0].image_url",
        (
            "Invalid 'input[0].content[0].image_url': string too long. Expected a string with maximum length "
            "20971520, but got a string with length 20971521 instead."
        ),
    ),
]


@pytest.mark.parametrize(("sent", "code", "param", "message"), ERRORS, ids=lambda value: "")
def test_a_bad_item_is_refused_in_the_api_s_words(sent: Any, code: str, param: str, message: str) -> None:
    """Spec: request-shape errors, measured live where the reference says so."""
    with pytest.raises(RequestError) as caught:
        decode(sent)
    assert caught.value.status == 400
    assert msgspec.to_builtins(caught.value.to_object()) == {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }


def test_item_questions() -> None:
    """Ours: calls, their outputs and what pairs them."""
    call = decode({**CALL, "id": "fc_1"})
    output = decode({"type": "function_call_output", "call_id": "call_1", "output": "x"})
    assert (items.get_item_id(call), items.get_call_id(call)) == ("fc_1", "call_1")
    assert (items.get_item_id(output), items.get_call_id(output)) == (None, "call_1")
    assert (items.is_call(call), items.is_call_output(call)) == (True, False)
    assert (items.is_call(output), items.is_call_output(output)) == (False, True)
    message = decode({"role": "user", "content": "hi"})
    assert items.get_call_id(message) is None
    assert not items.is_call(message)
    assert not items.is_call_output(message)
    shell = decode({"type": "local_shell_call_output", "id": "call_9", "output": "{}"})
    assert items.get_call_id(shell) == "call_9"
    search = {"type": "tool_search_call", "arguments": {}, "call_id": "call_1"}
    assert items.is_call(decode({**search, "execution": "client"}))
    assert items.is_call(decode(search))
    assert not items.is_call(decode({**search, "execution": "server"}))
    found = {"type": "tool_search_output", "tools": [], "call_id": "call_1"}
    assert items.is_call_output(decode({**found, "execution": "client"}))
    assert not items.is_call_output(decode({**found, "execution": "server"}))


def test_the_text_of_a_message_is_its_text_parts_joined() -> None:
    """Ours."""
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "file_id": "f"},
        {"type": "input_text", "text": "b"},
    ]
    for content, text in (("hi", "hi"), (parts, "ab")):
        message = decode({"role": "user", "content": content}).value
        assert isinstance(message, Message)
        assert items.message_text(message) == text


@pytest.mark.parametrize(
    ("item_type", "position", "item_id"),
    [
        ("message", 3, "msg_ab120003"),
        ("function_call", 255, "fc_ab1200ff"),
        ("function_call_output", 0, "fc_ab120000"),
        ("reasoning", 1, "rs_ab120001"),
        ("custom_tool_call", 1, "ctc_ab120001"),
        ("slug:thing", 70_000, "item_ab1211170"),
    ],
)
def test_a_missing_id_is_derived_from_node_and_position(item_type: str, position: int, item_id: str) -> None:
    """Ours: nothing is stored for an item that came without an id."""
    assert items.derive_item_id(item_type, "resp_ab12", position) == item_id


def test_derived_ids_of_every_type_are_accepted_as_input() -> None:
    """Ours: what a list shows can be sent back."""
    for example in EXAMPLES:
        item_id = items.derive_item_id(example["type"], "resp_" + "a" * 50, 3)
        assert items.get_item_id(decode({**example, "id": item_id})) == item_id
