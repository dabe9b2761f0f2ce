"""Tools and the choice among them: every form is decoded, echoed without secrets, and refused by the book."""

from typing import Any

import msgspec
import pytest
from openai.types.responses import FunctionTool as OfficialFunctionTool
from openai.types.responses import Tool as OfficialTool
from openai.types.responses.response import ToolChoice as OfficialChoice
from pydantic import TypeAdapter

from antiphon.protocol import tools
from antiphon.protocol.errors import RequestError

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}

#: One tool of every type, with everything that its echo always has.
EXAMPLES: list[dict[str, Any]] = [
    {**FUNCTION, "description": "d", "async": True, "output_schema": {"type": "string"}},
    {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "custom", "name": "c", "format": {"type": "text"}},
    {"type": "namespace", "name": "n", "description": "d", "tools": [{**FUNCTION, "description": "d"}]},
    {"type": "tool_search", "execution": "client"},
    {"type": "programmatic_tool_calling"},
    {
        "type": "file_search",
        "vector_store_ids": ["vs_1"],
        "max_num_results": 5,
        "filters": {"type": "eq", "key": "k", "value": "v"},
        "ranking_options": {"ranker": "auto", "score_threshold": 0.5},
    },
    {"type": "web_search", "filters": {"allowed_domains": ["a.b"]}, "search_context_size": "low"},
    {"type": "web_search_2025_08_26", "user_location": {"type": "approximate", "city": "c"}},
    {"type": "web_search_preview", "search_content_types": ["text"]},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "computer"},
    {"type": "computer_use_preview", "display_width": 1, "display_height": 2, "environment": "linux"},
    {
        "type": "mcp",
        "server_label": "s",
        "server_url": "http://a.b",
        "allowed_tools": {"tool_names": ["t"], "read_only": True},
        "require_approval": {"never": {"tool_names": ["t"]}},
    },
    {"type": "mcp", "server_label": "s", "allowed_tools": ["t"], "require_approval": "never"},
    {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"], "memory_limit": "1g"}},
    {"type": "code_interpreter", "container": "cntr_1"},
    {"type": "image_generation", "quality": "low", "partial_images": 2},
    {"type": "local_shell"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "apply_patch"},
]
CHOICES: list[Any] = [
    "none",
    "auto",
    "required",
    {"type": "function", "name": "f"},
    {"type": "custom", "name": "c"},
    {"type": "mcp", "server_label": "s", "name": "t"},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    {"type": "file_search"},
    {"type": "web_search_preview"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "computer"},
    {"type": "computer_use"},
    {"type": "computer_use_preview"},
    {"type": "image_generation"},
    {"type": "code_interpreter"},
    {"type": "apply_patch"},
    {"type": "shell"},
    {"type": "programmatic_tool_calling"},
]


def decode(*values: Any) -> list[tools.Tool]:
    return tools.decode_tools(msgspec.json.encode(values))


def name_example(value: Any) -> str:
    return str(value["type"] if isinstance(value, dict) else value)


def show_error(caught: pytest.ExceptionInfo[RequestError]) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(caught.value.to_object())
    return shown


@pytest.mark.parametrize("example", EXAMPLES, ids=name_example)
def test_every_tool_is_echoed_as_sent_and_validates_in_the_official_types(example: dict[str, Any]) -> None:
    """Spec: tools in requests and in the Response object."""
    echo = tools.echo_tool(decode(example)[0])
    assert echo == example
    TypeAdapter[Any](OfficialTool).validate_json(msgspec.json.encode(echo), strict=True)


def test_every_type_of_tool_has_an_example() -> None:
    """Ours."""
    known = {str(kind.__struct_config__.tag) for kind in tools.Tool.__args__}
    assert {example["type"] for example in EXAMPLES} == known


def test_a_function_tool_s_echo_has_its_defaults() -> None:
    """Spec: name, description, parameters and strict are all present in the echo."""
    echo = tools.echo_tool(decode({"type": "function", "name": "f"})[0])
    assert echo == {"type": "function", "name": "f", "description": None, "parameters": None, "strict": False}
    OfficialFunctionTool.model_validate_json(msgspec.json.encode(echo), strict=True)


def test_secrets_of_an_mcp_server_are_never_echoed() -> None:
    """Spec: authorization and headers must never be echoed in clear."""
    sent = {"type": "mcp", "server_label": "s", "authorization": "key", "headers": {"x": "key"}}
    tool = decode(sent)[0]
    assert isinstance(tool, tools.McpTool)
    assert (tool.authorization, tool.headers) == ("key", {"x": "key"})
    assert tools.echo_tool(tool) == {"type": "mcp", "server_label": "s"}


@pytest.mark.parametrize("choice", CHOICES, ids=name_example)
def test_every_choice_is_echoed_as_sent_and_validates_in_the_official_types(choice: Any) -> None:
    """Spec: tool_choice."""
    raw = msgspec.json.encode(choice)
    decoded = tools.decode_tool_choice(raw)
    assert tools.echo_tool_choice(decoded) == choice
    TypeAdapter[Any](OfficialChoice).validate_json(raw, strict=True)


WORDS = "Supported values are: 'none', 'auto', and 'required'."
TOOL_ERRORS: list[tuple[list[Any], str, str, str]] = [
    (
        [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "missing_required_parameter",
        "tools[0].name",
        "Missing required parameter: 'tools[0].name'.",
    ),
    (
        [FUNCTION, {"name": "f"}],
        "missing_required_parameter",
        "tools[1].type",
        "Missing required parameter: 'tools[1].type'.",
    ),
    (
        [7],
        "invalid_type",
        "tools[0]",
        "Invalid type for 'tools[0]': expected an object, but got an integer instead.",
    ),
    (
        [{**FUNCTION, "strickt": 1}],
        "unknown_parameter",
        "tools[0].strickt",
        "Unknown parameter: 'tools[0].strickt'.",
    ),
    (
        [{"type": "function", "name": "f", "strickt": True}],
        "unknown_parameter",
        "tools[0].strickt",
        "Unknown parameter: 'tools[0].strickt'. Did you mean 'tools[0].strict'?",
    ),
    (
        [{"type": "web_search", "filters": {"domains": []}}],
        "unknown_parameter",
        "tools[0].filters.domains",
        "Unknown parameter: 'tools[0].filters.domains'.",
    ),
    (
        [{**FUNCTION, "name": "a b"}],
        "invalid_value",
        "tools[0].name",
        (
            "Invalid 'tools[0].name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        ),
    ),
    (
        [{**FUNCTION, "name": "a" * 129}],
        "string_above_max_length",
        "tools[0].name",
        (
            "Invalid 'tools[0].name': string too long. Expected a string with maximum length 128, "
            "but got a string with length 129 instead."
        ),
    ),
    (
        [{**FUNCTION, "name": ""}],
        "empty_string",
        "tools[0].name",
        (
            "Invalid 'tools[0].name': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead."
        ),
    ),
    (
        [FUNCTION, FUNCTION],
        "invalid_value",
        "tools[1].name",
        "Duplicate tool name: 'f'. Tool names must be unique.",
    ),
    (
        [{"type": "mcp", "server_label": "s"}, {"type": "mcp", "server_label": "s"}],
        "invalid_value",
        "tools[1].server_label",
        "Duplicate MCP server_label: 's'. Give every MCP server its own.",
    ),
    (
        [{**FUNCTION, "parameters": {"type": "array"}}],
        "invalid_function_parameters",
        "tools[0].parameters",
        (
            "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', "
            "got 'type: \"array\"'."
        ),
    ),
    (
        [{**FUNCTION, "parameters": []}],
        "invalid_type",
        "tools[0].parameters",
        "Invalid type for 'tools[0].parameters': expected an object, but got an array instead.",
    ),
    (
        [{"type": "file_search", "vector_store_ids": [], "max_num_results": 51}],
        "integer_above_max_value",
        "tools[0].max_num_results",
        (
            "Invalid 'tools[0].max_num_results': integer above maximum value. "
            "Expected a value <= 50, but got 51 instead."
        ),
    ),
    (
        [{"type": "mcp", "server_label": "s", "require_approval": "sometimes"}],
        "invalid_value",
        "tools[0].require_approval",
        "Invalid value: 'sometimes'. Supported values are: 'always' and 'never'.",
    ),
]
CHOICE_ERRORS: list[tuple[Any, str, str, str]] = [
    ("sometimes", "invalid_value", "tool_choice", f"Invalid value: 'sometimes'. {WORDS}"),
    (
        7,
        "invalid_type",
        "tool_choice",
        "Invalid type for 'tool_choice': expected one of a string or object, but got an integer instead.",
    ),
    (
        {"type": "function"},
        "missing_required_parameter",
        "tool_choice.name",
        "Missing required parameter: 'tool_choice.name'.",
    ),
    (
        {"name": "f"},
        "missing_required_parameter",
        "tool_choice.type",
        "Missing required parameter: 'tool_choice.type'.",
    ),
    (
        {"type": "function", "name": "f", "namee": "g"},
        "unknown_parameter",
        "tool_choice.namee",
        "Unknown parameter: 'tool_choice.namee'.",
    ),
    (
        {"type": "function", "name": "g"},
        "invalid_value",
        "tool_choice",
        "Tool choice function 'g' not found in 'tools' parameter.",
    ),
    (
        {"type": "custom", "name": "f"},
        "invalid_value",
        "tool_choice",
        "Tool choice custom 'f' not found in 'tools' parameter.",
    ),
    (
        {"type": "mcp", "server_label": "s"},
        "invalid_value",
        "tool_choice",
        "Tool choice mcp 's' not found in 'tools' parameter.",
    ),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
        "invalid_value",
        "tool_choice.tools[0]",
        "Tool choice function 'g' not found in 'tools' parameter.",
    ),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
        "invalid_value",
        "tool_choice.tools[0]",
        "Tool choice 'web_search' not found in 'tools' parameter.",
    ),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]},
        "missing_required_parameter",
        "tool_choice.tools[0].name",
        "Missing required parameter: 'tool_choice.tools[0].name'.",
    ),
]


@pytest.mark.parametrize(("sent", "code", "param", "message"), TOOL_ERRORS, ids=lambda value: "")
def test_bad_tools_are_refused_in_the_api_s_words(sent: Any, code: str, param: str, message: str) -> None:
    """Spec: request-shape errors of tools."""
    with pytest.raises(RequestError) as caught:
        decode(*sent)
    expected = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    assert show_error(caught) == expected


@pytest.mark.parametrize(("sent", "code", "param", "message"), CHOICE_ERRORS, ids=lambda value: "")
def test_a_bad_choice_is_refused_in_the_api_s_words(sent: Any, code: str, param: str, message: str) -> None:
    """Spec: request-shape errors of tool_choice."""
    with pytest.raises(RequestError) as caught:
        tools.check_tool_choice(tools.decode_tool_choice(msgspec.json.encode(sent)), decode(FUNCTION))
    expected = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    assert show_error(caught) == expected


def test_an_unknown_type_of_tool_is_refused_with_the_supported_list() -> None:
    """Spec: request-shape errors of tools."""
    with pytest.raises(RequestError) as caught:
        decode({"type": "bogus"})
    assert caught.value.param == "tools[0].type"
    assert caught.value.code == "invalid_value"
    assert caught.value.message.startswith(
        "Invalid value: 'bogus'. Supported values are: 'function', 'custom', "
    )


def test_a_choice_may_name_a_tool_inside_a_namespace() -> None:
    """Ours: tools of a namespace are tools of the request."""
    declared = decode({"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]})
    tools.check_tool_choice(tools.FunctionChoice(name="f"), declared)


@pytest.mark.parametrize("parameters", [None, {}, {"properties": {}}, {"type": ["object", "null"]}, SCHEMA])
def test_parameters_may_be_any_schema_that_allows_an_object(parameters: Any) -> None:
    """Ours: a schema without a type, as some MCP servers give it, describes an object."""
    tool = decode({**FUNCTION, "parameters": parameters})[0]
    assert isinstance(tool, tools.FunctionTool)
    assert tool.parameters == parameters
