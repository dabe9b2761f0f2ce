"""Every field of a create request with two values, and what their difference does behind each kind of model server.

It knows no server. Invariant: the paths are those that `list_paths` finds in the requests' own types; of a tool that
is refused whole, its type alone.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, get_args

import msgspec

from antiphon.protocol.requests import FIELDS, Includable
from antiphon.protocol.tools import Tool, ToolChoice
from tests.generated.observing import MCP_URLS, SMALL_WINDOW, USE, Effect, Observation, Observer

Body = dict[str, Any]
Kept = Callable[[Observer, Observation, Observation], Awaitable[None]]
Prepare = Callable[[Observer], Awaitable[tuple[Body, Body]]]


class Row(NamedTuple):
    """Two bodies that differ in one field. `chat`, `responses`: the effect; a key: where upstream it is told.

    `params`: what a refusal may name, beside the field itself. `kept`: shows the effect of a field that no model
    server is told of. `prepare` makes the bodies, where they need ids.
    """

    a: Body
    b: Body
    chat: Effect
    responses: Effect
    chat_key: str | None = None
    responses_key: str | None = None
    params: tuple[str, ...] = ()
    kept: Kept | None = None
    prepare: Prepare | None = None


FUNCTION: Body = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
OTHER: Body = {**FUNCTION, "name": "other"}
CUSTOM: Body = {"type": "custom", "name": "write"}
SEARCH: Body = {"type": "web_search"}
FINDER: Body = {"type": "tool_search", "execution": "client"}
MCP: Body = {"type": "mcp", "server_label": "m", "server_url": MCP_URLS[0], "require_approval": "never"}
SPACE: Body = {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}
SCHEMA: Body = {"type": "json_schema", "name": "one", "schema": {"type": "object", "properties": {"n": {}}}}
IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"


def plain(name: str, a: Any, b: Any, key: str | None = None) -> Row:
    """A field that is told upstream, by its own name or by the chat key given."""
    return Row({name: a}, {name: b}, "sent", "sent", key or name, name)


def passed(name: str, a: Any, b: Any) -> Row:
    """A field that only a server that speaks Responses is told."""
    return Row({name: a}, {name: b}, "refused", "sent", None, name)


def in_text(**b: Any) -> Row:
    """A key of `text.format`, changed."""
    changed = {key: value for key, value in {**SCHEMA, **b}.items() if value is not None}
    return Row(
        {"text": {"format": SCHEMA}}, {"text": {"format": changed}}, "sent", "sent", "response_format", "text"
    )


def in_tool(tool: Body, chat: Effect, *more: Body, **b: Any) -> Row:
    """A key of a tool, changed; the model calls the tool."""
    shared: Body = {"input": USE}
    return Row(
        {**shared, "tools": [tool, *more]},
        {**shared, "tools": [{**tool, **b}, *more]},
        chat,
        "sent",
        "tools" if chat == "sent" else None,
        "tools",
        tuple(f"tools[0].{name}" for name in b),
    )


def refused_tool(kind: str, **fields: Any) -> Row:
    """A tool that no chat model can be given."""
    tools = [FUNCTION, {"type": kind, **fields}]
    return Row({"tools": [FUNCTION]}, {"tools": tools}, "refused", "sent", None, "tools", ("tools[1].type",))


def choice(
    chosen: Any, chat: Effect, *tools: Body, key: str | None = "tool_choice", responses: Effect = "sent"
) -> Row:
    """A form of `tool_choice`, against none."""
    shared: Body = {"tools": [FUNCTION, OTHER, *tools]}
    params = ("tool_choice", "tool_choice.type", "tools[2].type")
    return Row(
        shared,
        {**shared, "tool_choice": chosen},
        chat,
        responses,
        key if chat == "sent" else None,
        "tool_choice",
        params,
    )


def include(
    member: str, chat: Effect, key: str | None = None, *, kept: Kept | None = None, **more: Any
) -> Row:
    """A member of `include`, against none."""
    responses_key = None if member == "reasoning.encrypted_content" else "include"
    effect: Effect = "nothing" if responses_key is None else "sent"
    return Row(more, {**more, "include": [member]}, chat, effect, key, responses_key, ("include[0]",), kept)


# What a field does that no model server is told of


async def check_store(observer: Observer, first: Observation, second: Observation) -> None:
    """Stored: it can be read. Not stored: it cannot."""
    assert (await observer.client.retrieve(first.response["id"])).status == 200
    assert (await observer.client.retrieve(second.response["id"])).status == 404


async def check_read_back(observer: Observer, first: Observation, second: Observation) -> None:
    """What was said is read back, from the store: it differs, and both are as they were told at once."""
    read = [(await observer.client.retrieve(each.response["id"])).body for each in (first, second)]
    assert [each.response for each in (first, second)] == read
    ignored = {"id", "created_at", "completed_at", "output"}
    changed = {key for key in {*read[0], *read[1]} - ignored if read[0].get(key) != read[1].get(key)}
    assert len(changed) == 1, changed


async def check_nothing_kept(observer: Observer, first: Observation, second: Observation) -> None:
    """A hint that has no place: not told anywhere, and nowhere in what is stored."""
    for each in (first, second):
        record = await observer.store.load("default", each.response["id"])
        assert record is not None
        assert b"planted" not in msgspec.msgpack.encode(record)


async def check_image_shown(observer: Observer, first: Observation, second: Observation) -> None:
    """Images are listed with their URL whether it was asked for or not."""
    for each in (first, second):
        page = (await observer.client.list_items(each.response["id"])).body
        assert page["data"][0]["content"][0]["image_url"] == IMAGE


async def check_sealed(observer: Observer, first: Observation, second: Observation) -> None:
    """Behind Responses it is asked for always, and kept; a chat model's reasoning is sealed here when asked for."""
    asked = [b"reasoning.encrypted_content" in each.upstream[0] for each in (first, second)]
    assert asked in ([True, True], [False, False])
    assert all(asked) or ("SEALED" in second.shown and "SEALED" not in first.shown)


async def check_warned(observer: Observer, first: Observation, second: Observation) -> None:
    """Part of it cannot be had, and the response says so; a server that speaks Responses is told it."""
    warned = [each.response.get("antiphon", {}).get("warnings", []) for each in (first, second)]
    assert len(warned[1]) == len(warned[0]) + (second.upstream == first.upstream)


async def check_same_as_absent(observer: Observer, first: Observation, second: Observation) -> None:
    """A value that means what happens anyway."""
    assert first.response["status"] == second.response["status"] == "completed"


# What needs ids


async def prepare_chains(observer: Observer) -> tuple[Body, Body]:
    """Two responses to continue."""
    ids = [(await observer.observe({"input": text})).response["id"] for text in ("One.", "Two.")]
    return {"previous_response_id": ids[0]}, {"previous_response_id": ids[1]}


async def prepare_conversations(observer: Observer) -> tuple[Body, Body]:
    """Two conversations with an item each."""
    bodies: list[Body] = []
    for text in ("One.", "Two."):
        items = [{"type": "message", "role": "user", "content": text}]
        made = await observer.client.send("POST", "/v1/conversations", {"items": items})
        # Read, and not added to.
        bodies.append({"conversation": made.body["id"], "store": False})
    return bodies[0], bodies[1]


async def prepare_conversation_objects(observer: Observer) -> tuple[Body, Body]:
    """The same, as objects."""
    first, second = await prepare_conversations(observer)
    return (
        {**first, "conversation": {"id": first["conversation"]}},
        {**second, "conversation": {"id": second["conversation"]}},
    )


def prepare_compactions(a: Body, b: Body) -> Prepare:
    """The same long conversation, continued with each of the two."""

    async def prepare(observer: Observer) -> tuple[Body, Body]:
        items: list[Body] = [{"role": "user", "content": "Read the files."}]
        for number in range(6):
            call = {"call_id": f"call_{number}", "name": "look", "arguments": json.dumps({"file": number})}
            text = f"File {number}: " + "word " * 300
            items.append({"type": "function_call", "id": f"fc_{number}", **call})
            output = {"call_id": f"call_{number}", "output": text}
            items.append({"type": "function_call_output", "id": f"fc_{number}r", **output})
        made = await observer.observe({"input": items})
        asked = {"previous_response_id": made.response["id"], "input": "Go on."}
        return {**asked, **a}, {**asked, **b}

    return prepare


def compacting(a: Body, b: Body) -> Row:
    """A field on which it depends what is left of a window."""
    return Row({}, {}, "sent", "sent", "messages", "input", prepare=prepare_compactions(a, b))


_DUE: Body = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
_FAR: Body = {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]}
_LONG = [
    {"role": "user" if n % 2 else "assistant", "content": f"Number {n}: " + "word " * 400} for n in range(12)
]
_HINT: dict[str, Any] = {"chat": "nothing", "responses": "sent"}

_SEARCHES = ("web_search", "web_search_2025_08_26")
_PREVIEWS = ("web_search_preview", "web_search_preview_2025_03_11")
_PLACE = {"type": "approximate", "city": "Ur"}
#: Types, key, value, and the row's effect behind a chat model, key upstream, own check.
_SEARCH_KEYS: tuple[tuple[tuple[str, ...], str, Any, Effect, str | None, Kept | None], ...] = (
    (_SEARCHES, "filters", {"allowed_domains": ["other.example"]}, "sent", "messages", None),
    (_SEARCHES, "search_context_size", "high", "asked", None, None),
    (_SEARCHES, "user_location", _PLACE, "sent", "tools", None),
    (_SEARCHES, "external_web_access", False, "sent", "tools", None),
    (_PREVIEWS, "search_context_size", "high", "asked", None, None),
    (_PREVIEWS, "user_location", _PLACE, "sent", "tools", None),
    (_PREVIEWS, "search_content_types", ["image"], "nothing", None, check_warned),
)

ROWS: dict[str, Row] = {
    "model": plain("model", "m", "n"),
    "input": Row({"input": "One."}, {"input": "Two."}, "sent", "sent", "messages", "input"),
    "previous_response_id": Row({}, {}, "sent", "sent", "messages", "input", prepare=prepare_chains),
    "conversation": Row({}, {}, "sent", "sent", "messages", "input", prepare=prepare_conversations),
    "conversation.id": Row({}, {}, "sent", "sent", "messages", "input", prepare=prepare_conversation_objects),
    "prompt.id": passed("prompt", {"id": "a"}, {"id": "b"}),
    "prompt.version": passed("prompt", {"id": "a"}, {"id": "a", "version": "1"}),
    "prompt.variables": passed("prompt", {"id": "a"}, {"id": "a", "variables": {"x": "y"}}),
    "moderation.model": passed("moderation", {"model": "a"}, {"model": "b"}),
    "moderation.policy.input.mode": passed(
        "moderation",
        {"model": "a", "policy": {"input": {"mode": "score"}}},
        {"model": "a", "policy": {"input": {"mode": "block"}}},
    ),
    "moderation.policy.output.mode": passed(
        "moderation",
        {"model": "a", "policy": {"output": {"mode": "score"}}},
        {"model": "a", "policy": {"output": {"mode": "block"}}},
    ),
    "include.file_search_call.results": include("file_search_call.results", "refused"),
    "include.web_search_call.results": include("web_search_call.results", "shown", tools=[SEARCH], input=USE),
    "include.web_search_call.action.sources": include(
        "web_search_call.action.sources", "shown", tools=[SEARCH], input=USE
    ),
    "include.message.input_image.image_url": include(
        "message.input_image.image_url",
        "nothing",
        kept=check_image_shown,
        input=[{"role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]}],
    ),
    "include.computer_call_output.output.image_url": include(
        "computer_call_output.output.image_url", "refused"
    ),
    "include.code_interpreter_call.outputs": include("code_interpreter_call.outputs", "refused"),
    "include.reasoning.encrypted_content": include("reasoning.encrypted_content", "shown", kept=check_sealed),
    "include.message.output_text.logprobs": include("message.output_text.logprobs", "sent", "logprobs"),
    "metadata": Row(
        {"metadata": {"k": "a"}},
        {"metadata": {"k": "b"}},
        "nothing",
        "sent",
        None,
        "metadata",
        (),
        check_read_back,
    ),
    "text.format.type": Row(
        {"text": {"format": {"type": "text"}}},
        {"text": {"format": {"type": "json_object"}}},
        "sent",
        "sent",
        "response_format",
        "text",
    ),
    "text.format.name": in_text(name="two"),
    "text.format.schema": in_text(schema={"type": "object"}),
    "text.format.description": in_text(description="A number."),
    "text.format.strict": in_text(strict=True),
    "text.verbosity": Row(
        {"text": {"verbosity": "low"}}, {"text": {"verbosity": "high"}}, "sent", "sent", "verbosity", "text"
    ),
    "temperature": plain("temperature", 0.5, 1),
    "top_p": plain("top_p", 0.5, 1),
    "presence_penalty": plain("presence_penalty", 0.5, 1),
    "frequency_penalty": plain("frequency_penalty", 0.5, 1),
    "parallel_tool_calls": Row(
        {"tools": [FUNCTION], "parallel_tool_calls": False},
        {"tools": [FUNCTION], "parallel_tool_calls": True},
        "sent",
        "sent",
        "parallel_tool_calls",
        "parallel_tool_calls",
    ),
    "stream": Row({"stream": False}, {"stream": True}, "shown", "shown"),
    "stream_options.include_obfuscation": Row(
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "shown",
        "shown",
    ),
    "background": Row({"background": False}, {"background": True}, "shown", "shown"),
    "background_options.completion_window": Row(
        {},
        {"background": True, "background_options": {"completion_window": "2h"}},
        "refused",
        "refused",
        None,
        None,
        ("background_options",),
    ),
    "background_options.continuation_id": Row(
        {},
        {"background": True, "background_options": {"continuation_id": "x"}},
        "refused",
        "refused",
        None,
        None,
        ("background_options",),
    ),
    "max_output_tokens": plain("max_output_tokens", 16, 32, "max_completion_tokens"),
    "max_tool_calls": Row(
        {"tools": [SEARCH], "input": USE, "max_tool_calls": 1},
        {"tools": [SEARCH], "input": USE, "max_tool_calls": 2},
        "sent",
        "sent",
        None,
        "max_tool_calls",
    ),
    "reasoning.effort": Row(
        {"reasoning": {"effort": "low"}},
        {"reasoning": {"effort": "high"}},
        "sent",
        "sent",
        "reasoning_effort",
        "reasoning",
    ),
    "reasoning.summary": Row(
        {"reasoning": {"summary": "auto"}},
        {"reasoning": {"summary": "detailed"}},
        "nothing",
        "sent",
        None,
        "reasoning",
        (),
        check_read_back,
    ),
    "reasoning.generate_summary": Row(
        {"reasoning": {"generate_summary": "auto"}},
        {"reasoning": {"generate_summary": "detailed"}},
        "nothing",
        "sent",
        None,
        "reasoning",
        (),
        check_read_back,
    ),
    "reasoning.context": Row(
        {},
        {"reasoning": {"context": "current_turn"}},
        "refused",
        "sent",
        None,
        "reasoning",
        ("reasoning.context",),
    ),
    "reasoning.mode": Row(
        {}, {"reasoning": {"mode": "pro"}}, "refused", "sent", None, "reasoning", ("reasoning.mode",)
    ),
    "user": plain("user", "a", "b"),
    "safety_identifier": plain("safety_identifier", "a", "b"),
    "prompt_cache_options.mode": Row(
        {"prompt_cache_options": {"mode": "implicit"}},
        {"prompt_cache_options": {"mode": "explicit"}},
        **_HINT,
        responses_key="prompt_cache_options",
        kept=check_read_back,
    ),
    "prompt_cache_options.ttl": Row(
        {"prompt_cache_options": {"ttl": "30m"}},
        {"prompt_cache_options": {"ttl": "12h"}},
        **_HINT,
        responses_key="prompt_cache_options",
        kept=check_read_back,
    ),
    "prompt_cache_options.prewarm": Row(
        {"prompt_cache_options": {"prewarm": False}},
        {"prompt_cache_options": {"prewarm": True}},
        "refused",
        "sent",
        None,
        "prompt_cache_options",
        ("prompt_cache_options.prewarm",),
    ),
    "prompt_cache_options.comparison_response_id": Row(
        {"prompt_cache_options": {}},
        {"prompt_cache_options": {"comparison_response_id": "resp_planted"}},
        "refused",
        "sent",
        None,
        "prompt_cache_options",
        ("prompt_cache_options.comparison_response_id",),
    ),
    "prompt_cache_key": plain("prompt_cache_key", "a", "b"),
    "prompt_cache_retention": plain("prompt_cache_retention", "in_memory", "24h"),
    "truncation": Row(
        {"model": SMALL_WINDOW, "input": _LONG, "truncation": "auto"},
        {"model": SMALL_WINDOW, "input": _LONG, "truncation": "disabled"},
        "sent",
        "sent",
        "messages",
        "input",
    ),
    "instructions": Row(
        {"instructions": "Be kind."},
        {"instructions": "Be short."},
        "sent",
        "sent",
        "messages",
        "instructions",
    ),
    # Reasoning that is not stored here is given to the client, sealed.
    "store": Row({"store": True}, {"store": False}, "shown", "nothing", kept=check_store),
    "service_tier": plain("service_tier", "flex", "priority"),
    "top_logprobs": plain("top_logprobs", 2, 5),
    "context_management.type": compacting({}, _DUE),
    "context_management.compact_threshold": compacting(_FAR, _DUE),
    "image.context_compression": passed(
        "image", {"context_compression": "enabled"}, {"context_compression": "disabled"}
    ),
    "access_programs.cyber": passed("access_programs", {"cyber": "standard"}, {"cyber": "daybreak_blue"}),
    "client_metadata": Row(
        {"client_metadata": {"x": "planted"}},
        {"client_metadata": {"x": "planted too"}},
        **_HINT,
        responses_key="client_metadata",
        kept=check_nothing_kept,
    ),
    "antiphon.marks": compacting(
        {**_DUE, "antiphon": {"method": "elide", "marks": {"call_0": "keep"}}},
        {**_DUE, "antiphon": {"method": "elide", "marks": {"call_0": "uneventful"}}},
    ),
    "antiphon.method": compacting(
        {**_DUE, "antiphon": {"method": "elide"}}, {**_DUE, "antiphon": {"method": "extract"}}
    ),
    # The choice among tools
    "tool_choice.none": choice("none", "sent", key="tools"),
    "tool_choice.auto": Row(
        {"tools": [FUNCTION]},
        {"tools": [FUNCTION], "tool_choice": "auto"},
        "nothing",
        "sent",
        None,
        "tool_choice",
        kept=check_same_as_absent,
    ),
    "tool_choice.required": choice("required", "sent"),
    "tool_choice.function": choice({"type": "function", "name": "other"}, "sent"),
    "tool_choice.custom": choice({"type": "custom", "name": "write"}, "sent", CUSTOM),
    "tool_choice.mcp": choice({"type": "mcp", "server_label": "m"}, "sent", MCP),
    "tool_choice.allowed_tools": choice(
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]},
        "sent",
        key="tools",
    ),
    "tool_choice.web_search_preview": choice(
        {"type": "web_search_preview"}, "sent", {"type": "web_search_preview"}
    ),
    "tool_choice.web_search_preview_2025_03_11": choice(
        {"type": "web_search_preview_2025_03_11"}, "sent", {"type": "web_search_preview_2025_03_11"}
    ),
    "tool_choice.shell": choice({"type": "shell"}, "sent", {"type": "shell"}),
    "tool_choice.apply_patch": choice({"type": "apply_patch"}, "sent", {"type": "apply_patch"}),
    **{
        f"tool_choice.{kind}": choice({"type": kind}, "refused")
        for kind in (
            "file_search",
            "computer",
            "computer_use",
            "computer_use_preview",
            "image_generation",
            "code_interpreter",
            "programmatic_tool_calling",
        )
    },
    # Tools
    "tools.function.name": in_tool(FUNCTION, "sent", name="see"),
    "tools.function.parameters": in_tool(FUNCTION, "sent", parameters={"type": "object", "title": "t"}),
    "tools.function.strict": in_tool(FUNCTION, "sent", strict=True),
    "tools.function.description": in_tool(FUNCTION, "sent", description="Looks."),
    "tools.function.async": in_tool(FUNCTION, "sent", **{"async": True})._replace(chat_key=None),
    "tools.function.defer_loading": in_tool(FUNCTION, "sent", FINDER, defer_loading=True),
    "tools.function.allowed_callers": in_tool(FUNCTION, "refused", allowed_callers=["programmatic"]),
    "tools.function.output_schema": in_tool(FUNCTION, "sent", output_schema={"type": "object"}),
    "tools.custom.name": in_tool(CUSTOM, "sent", name="scribble"),
    "tools.custom.description": in_tool(CUSTOM, "sent", description="Writes."),
    "tools.custom.format.grammar.syntax": in_tool(
        {**CUSTOM, "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}},
        "sent",
        format={"type": "grammar", "syntax": "lark", "definition": "start: /[a-z]+/"},
    ),
    "tools.custom.format.grammar.definition": in_tool(
        {**CUSTOM, "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}},
        "sent",
        format={"type": "grammar", "syntax": "regex", "definition": "[abc]+"},
    ),
    "tools.custom.format.text": in_tool(
        {**CUSTOM, "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}},
        "sent",
        format={"type": "text"},
    ),
    "tools.custom.async": in_tool(CUSTOM, "sent", **{"async": True})._replace(chat_key=None),
    "tools.custom.defer_loading": in_tool(CUSTOM, "sent", FINDER, defer_loading=True),
    "tools.custom.allowed_callers": in_tool(CUSTOM, "refused", allowed_callers=["programmatic"]),
    "tools.namespace.name": in_tool(SPACE, "sent", name="o"),
    "tools.namespace.description": in_tool(SPACE, "sent", description="e"),
    "tools.namespace.tools": in_tool(SPACE, "sent", tools=[OTHER]),
    "tools.tool_search.execution": in_tool(FINDER, "refused", execution="server"),
    "tools.tool_search.description": in_tool(FINDER, "sent", description="Finds."),
    "tools.tool_search.parameters": in_tool(FINDER, "sent", parameters={"type": "object", "title": "t"}),
    "tools.programmatic_tool_calling": refused_tool("programmatic_tool_calling"),
    "tools.file_search": refused_tool("file_search", vector_store_ids=["v"]),
    "tools.computer": refused_tool("computer"),
    "tools.computer_use_preview": refused_tool(
        "computer_use_preview", display_width=1, display_height=1, environment="mac"
    ),
    "tools.code_interpreter": refused_tool("code_interpreter", container="c"),
    "tools.image_generation": refused_tool("image_generation"),
    **{
        f"tools.{kind}.{key}": in_tool({"type": kind}, chat, **{key: value})._replace(
            chat_key=told, kept=kept
        )
        for kinds, key, value, chat, told, kept in _SEARCH_KEYS
        for kind in kinds
    },
    "tools.mcp.server_label": in_tool(MCP, "sent", server_label="o"),
    "tools.mcp.server_url": in_tool(MCP, "asked", server_url=MCP_URLS[1]),
    "tools.mcp.connector_id": in_tool(MCP, "refused", connector_id="connector_gmail"),
    "tools.mcp.tunnel_id": in_tool(MCP, "refused", tunnel_id="t"),
    "tools.mcp.server_description": in_tool(MCP, "sent", server_description="Echoes."),
    "tools.mcp.allowed_tools": in_tool(MCP, "sent", allowed_tools=["say"]),
    "tools.mcp.authorization": in_tool(MCP, "asked", authorization="secret"),
    "tools.mcp.headers": in_tool(MCP, "asked", headers={"x-a": "b"}),
    "tools.mcp.require_approval": in_tool(MCP, "sent", require_approval="always")._replace(chat_key=None),
    "tools.mcp.defer_loading": in_tool(MCP, "sent", FINDER, defer_loading=True),
    "tools.mcp.allowed_callers": in_tool(MCP, "refused", allowed_callers=["programmatic"]),
    "tools.local_shell": Row({}, {"tools": [{"type": "local_shell"}]}, "sent", "sent", "tools", "tools"),
    "tools.shell.environment": in_tool({"type": "shell"}, "refused", environment={"type": "container_auto"}),
    "tools.shell.allowed_callers": in_tool({"type": "shell"}, "refused", allowed_callers=["programmatic"]),
    "tools.apply_patch.allowed_callers": in_tool(
        {"type": "apply_patch"}, "refused", allowed_callers=["programmatic"]
    ),
}
#: Tools that are refused whole: what their keys say is refused with them.
_WHOLE = frozenset(
    path.partition(".")[2] for path in ROWS if path.startswith("tools.") and path.count(".") == 1
)
#: Keys that are told apart by more than one row.
_SPLIT = frozenset({"tools.custom.format"})


def list_paths() -> set[str]:
    """Every field and nested field, from the types that requests are read with."""
    paths: set[str] = set()
    for name, rule in FIELDS.items():
        if name == "include":
            paths |= {f"include.{member}" for member in get_args(Includable)}
        elif name == "tool_choice":
            paths |= {f"tool_choice.{kind}" for kind in _list_choices()}
        elif name == "tools":
            paths |= set(_list_tool_keys())
        elif name == "text":
            paths |= {f"text.format.{key}" for key in ("type", "name", "schema", "description", "strict")}
            paths |= {f"text.{key}" for key in _list_keys(rule.shape) if key != "format"}
        else:
            paths |= _list_leaves(name, msgspec.inspect.type_info(rule.shape))
    return paths


def _list_keys(shape: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(shape)]


def _list_leaves(path: str, info: Any) -> set[str]:
    if isinstance(info, msgspec.inspect.UnionType):
        leaves = set[str]()
        for member in info.types:
            if not isinstance(member, msgspec.inspect.NoneType):
                leaves |= _list_leaves(path, member)
        return leaves
    if isinstance(info, msgspec.inspect.ListType):
        inner = _list_leaves(path, info.item_type)
        return inner if inner != {path} else {path}
    if isinstance(info, msgspec.inspect.StructType):
        return {
            leaf for field in info.fields for leaf in _list_leaves(f"{path}.{field.encode_name}", field.type)
        }
    return {path}


def _list_choices() -> list[str]:
    kinds: list[str] = []
    for form in get_args(ToolChoice):
        if isinstance(form, type):
            kinds.append(_get_tag(form))
        else:
            kinds += get_args(form)
    return kinds


def _get_tag(form: Any) -> str:
    return str(form.__struct_config__.tag)


def _list_tool_keys() -> list[str]:
    paths: list[str] = []
    for form in get_args(Tool):
        kind = _get_tag(form)
        if kind in _WHOLE:
            paths.append(f"tools.{kind}")
            continue
        for key in _list_keys(form):
            path = f"tools.{kind}.{key}"
            paths += [row for row in ROWS if row.startswith(f"{path}.")] if path in _SPLIT else [path]
    return paths
