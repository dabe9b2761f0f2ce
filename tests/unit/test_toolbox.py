"""Tools as they are declared -> what a chat model is offered: every kind, every choice, every refusal."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.context import Profile, Toolbox, build_toolbox, flatten_name, load_tools
from antiphon.context.tool_names import FLAT_NAME_CHARACTERS
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import decode_items
from antiphon.protocol.tools import McpTool, check_tool_choice, decode_tool_choice, decode_tools

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "description": "F.", "parameters": SCHEMA}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "c", "description": "C."}
SEARCH: dict[str, Any] = {"type": "tool_search", "execution": "client"}
WEB: dict[str, Any] = {"type": "web_search"}
MCP: dict[str, Any] = {"type": "mcp", "server_label": "s", "server_url": "http://a.b/mcp"}


def namespace(name: str, *members: dict[str, Any], description: str = "N.") -> dict[str, Any]:
    """A namespace tool."""
    return {"type": "namespace", "name": name, "description": description, "tools": list(members)}


def say(**fields: Any) -> dict[str, Any]:
    """A member of a namespace."""
    return {"type": "function", "name": "say", **fields}


def build(
    *tools: dict[str, Any],
    choice: Any = None,
    items: Any = (),
    profile: Profile = Profile(),  # noqa: B008
    **given: Any,
) -> Toolbox:
    """The toolbox of a request as it arrives, its own checks included."""
    declared = decode_tools(msgspec.json.encode(tools))
    chosen = decode_tool_choice(msgspec.json.encode(choice)) if choice is not None else "auto"
    check_tool_choice(chosen, declared)
    loaded = load_tools(decode_items(msgspec.json.encode(items)))
    return build_toolbox(
        [*declared, *loaded],
        choice=chosen,
        choice_given=choice is not None,
        model="m",
        profile=profile,
        declared=len(declared),
        **{"can_search": True, "can_call_mcp": True, **given},
    )


def refuse(*tools: dict[str, Any], **given: Any) -> tuple[str | None, str | None]:
    """Param and code of a refusal."""
    with pytest.raises(RequestError) as caught:
        build(*tools, **given)
    assert caught.value.status == 400
    return caught.value.param, caught.value.code


def names(box: Toolbox) -> list[str]:
    """The flat names that are offered."""
    return [tool.name for tool in box.offered]


# Names


@pytest.mark.parametrize(
    ("space", "name", "flat"),
    [
        (None, "f", "f"),
        ("mcp__echo", "say", "mcp__echo__say"),
        (None, "a" * 64, "a" * 64),
        (None, "a" * 65, f"{'a' * 55}_3f104f71"),
        ("my server", "t", "my_server__t_3b1b3661"),
    ],
)
def test_a_flat_name_is_the_namespace_and_the_name(space: str | None, name: str, flat: str) -> None:
    """Ours; Codex's own MCP namespaces begin so. Stored histories rest on these names: they never change."""
    assert flatten_name(space, name) == flat


@given(st.none() | st.text(max_size=80), st.text(min_size=1, max_size=140))
def test_a_flat_name_is_always_legal_and_always_the_same(space: str | None, name: str) -> None:
    """Chat Completions: names of 1-64 letters, digits, underscores and dashes."""
    flat = flatten_name(space, name)
    assert flat == flatten_name(space, name)
    assert 1 <= len(flat) <= FLAT_NAME_CHARACTERS
    assert flat.isascii()
    assert flat.replace("-", "_").replace("_", "a").isalnum()


def test_long_and_illegal_names_do_not_meet() -> None:
    """Ours: what was cut or replaced is told apart by a hash."""
    made = {flatten_name(space, name) for space in ("a" * 70, "a b", "a.b") for name in ("x", "y")}
    assert len(made) == 6


# Offers


def test_a_function_is_offered_as_it_is() -> None:
    """Spec: function tools."""
    (tool,) = build({**FUNCTION, "strict": True}).offered
    assert (tool.name, tool.kind, tool.own_name, tool.namespace, tool.is_async) == (
        "f",
        "function",
        "f",
        None,
        False,
    )
    assert msgspec.to_builtins(tool.function) == {**FUNCTION, "strict": True}


def test_a_custom_tool_is_a_function_with_one_string() -> None:
    """Spec: custom tools take raw text; a grammar is described, for no chat server enforces it."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    plain, ruled = build(CUSTOM, {**CUSTOM, "name": "d", "format": grammar, "async": True}).offered
    assert plain.kind == ruled.kind == "custom"
    assert plain.function.parameters == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    assert str(plain.function.description).startswith("C.\n\n")
    assert plain.grammar is None
    assert ruled.is_async
    assert ruled.grammar is not None
    assert 'Lark grammar:\nstart: "x"' in str(ruled.function.description)


def test_a_member_of_a_namespace_has_a_flat_name_and_knows_its_own() -> None:
    """Codex: a call must come back with name and namespace; the flat name is rejected."""
    (tool, other) = build(namespace("mcp__echo", say(description="Says."), {**CUSTOM, "name": "raw"})).offered
    assert (tool.name, tool.own_name, tool.namespace) == ("mcp__echo__say", "say", "mcp__echo")
    assert tool.function.name == "mcp__echo__say"
    assert tool.function.description == "Says.\n\nPart of mcp__echo: N."
    assert (other.name, other.kind) == ("mcp__echo__raw", "custom")


def test_what_a_function_returns_is_told() -> None:
    """Spec: output_schema describes the result for the model; Chat Completions has no field for it."""
    (tool,) = build({**FUNCTION, "output_schema": {"type": "string"}}).offered
    assert tool.function.description == 'F.\n\nIt returns JSON by this schema: {"type":"string"}'


@pytest.mark.parametrize(
    ("declared", "kind", "required"),
    [
        (SEARCH, "tool_search", ["query"]),
        ({"type": "local_shell"}, "local_shell", ["command"]),
        ({"type": "shell"}, "shell", ["commands"]),
        ({"type": "shell", "environment": {"type": "local"}}, "shell", ["commands"]),
        ({"type": "apply_patch"}, "apply_patch", ["type", "path", "diff"]),
    ],
)
def test_client_run_tools_without_a_name_are_functions_of_a_fixed_form(
    declared: Any, kind: str, required: list[str]
) -> None:
    """Spec: the fields of their call items."""
    (tool,) = build(declared).offered
    assert (tool.name, tool.kind) == (kind, kind)
    assert tool.function.parameters is not None
    assert tool.function.parameters["required"] == required
    assert tool.function.description


def test_a_search_and_a_shell_tell_what_the_client_says_of_them() -> None:
    """Codex sends its own description and parameters; skills belong to a local shell."""
    environment = {
        "type": "local",
        "skills": [{"name": "pdf", "path": "/s/pdf", "description": "Reads PDF."}],
    }
    search, shell = build(
        {**SEARCH, "description": "Look.", "parameters": SCHEMA},
        {"type": "shell", "environment": environment},
    ).offered
    assert (search.function.description, search.function.parameters) == ("Look.", SCHEMA)
    assert "- pdf (/s/pdf): Reads PDF." in str(shell.function.description)


def test_hosted_tools_are_handed_on() -> None:
    """Ours: what the server runs is not offered until its own tools are known."""
    box = build(FUNCTION, WEB, MCP)
    assert names(box) == ["f"]
    assert [type(tool).__name__ for tool in box.hosted] == ["WebSearchTool", "McpTool"]
    # A call of theirs that is not run here is dropped: no client knows them.
    assert box.hidden == {"web_search"}
    assert box.hidden_prefixes == ("s__",)
    assert (box.choice, box.forced, box.warnings) == ("auto", None, [])


def test_without_tools_there_is_nothing_to_choose() -> None:
    """Ours."""
    assert build() == Toolbox()
    assert build(choice="none") == Toolbox()


# Tools that items bring


FOUND = {
    "type": "tool_search_output",
    "call_id": "call_1",
    "execution": "client",
    "tools": [namespace("mcp__x", say(defer_loading=True))],
}


def test_tools_that_items_bring_are_offered_behind_the_requests_own() -> None:
    """Codex: newer models get all their tools in an additional_tools item."""
    brought = {"type": "additional_tools", "role": "developer", "tools": [CUSTOM, namespace("n", say())]}
    assert names(build(FUNCTION, items=[brought, FOUND])) == ["f", "c", "n__say", "mcp__x__say"]


def test_a_deferred_tool_is_offered_once_it_was_found() -> None:
    """Spec: defer_loading."""
    deferred = namespace("mcp__x", say(defer_loading=True), say(name="shout", defer_loading=True))
    before = build(SEARCH, deferred)
    assert names(before) == ["tool_search"]
    assert before.hidden == {"mcp__x__say", "mcp__x__shout"}
    assert names(build(SEARCH, deferred, items=[FOUND])) == ["tool_search", "mcp__x__say"]
    assert names(build(deferred, SEARCH, items=[FOUND])) == ["mcp__x__say", "tool_search"]


def test_a_deferred_tool_that_nothing_can_find_is_refused() -> None:
    """Ours: it would be declared for nothing."""
    assert refuse({**FUNCTION, "defer_loading": True}) == ("tools[0].defer_loading", "invalid_value")
    member = namespace("n", say(), say(name="x", defer_loading=True))
    assert refuse(FUNCTION, member) == ("tools[1].tools[1].defer_loading", "invalid_value")


def test_a_later_declaration_counts_in_the_place_of_the_first() -> None:
    """Ours: the order is stable, or the prompt cache is lost."""
    again = {"type": "additional_tools", "tools": [{**FUNCTION, "description": "New."}]}
    box = build(FUNCTION, CUSTOM, items=[again, again])
    assert names(box) == ["f", "c"]
    assert box.offered[0].function.description == "New."


@pytest.mark.parametrize(
    ("tools", "param", "code"),
    [
        ([{"type": "function"}], "input[1].tools[0].name", "missing_required_parameter"),
        ([FUNCTION, {"type": "bogus"}], "input[1].tools[1].type", "invalid_value"),
        ([FUNCTION, {"type": "file_search", "vector_store_ids": []}], "input[1].tools[1].type", None),
        ([namespace("n", say(allowed_callers=["programmatic"]))], None, None),
    ],
)
def test_a_bad_tool_in_an_item_is_refused_by_its_place(
    tools: Any, param: str | None, code: str | None
) -> None:
    """Ours: validated like the tools of a request."""
    items = [{"role": "user", "content": "x"}, {"type": "additional_tools", "tools": tools}]
    found = refuse(items=items)
    assert found == (
        param or "input[1].tools[0].tools[0].allowed_callers",
        code or "unsupported_parameter",
    )


# Collisions


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([namespace("a", say()), {"type": "function", "name": "a__say"}], "tools[1].name"),
        ([namespace("a__b", say(name="c")), namespace("a", say(name="b__c"))], "tools[1].tools[0].name"),
        ([{"type": "shell"}, {"type": "function", "name": "shell"}], "tools[1].name"),
        ([{"type": "function", "name": "web_search"}, WEB], "tools[1].name"),
    ],
)
def test_two_tools_of_one_flat_name_are_refused(tools: Any, param: str) -> None:
    """Ours: a chat model could not tell them apart, and its call would go to the wrong one."""
    assert refuse(*tools) == (param, "invalid_value")


def test_a_function_may_be_called_web_search_where_there_is_no_other() -> None:
    """Ours: a search that is left out takes no name."""
    box = build({"type": "function", "name": "web_search"}, WEB, can_search=False)
    assert (names(box), box.hidden) == (["web_search"], frozenset())


# What is refused


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "file_search", "vector_store_ids": ["vs"]}, "tools[0].type"),
        ({"type": "code_interpreter", "container": "c"}, "tools[0].type"),
        ({"type": "image_generation"}, "tools[0].type"),
        ({"type": "computer"}, "tools[0].type"),
        (
            {
                "type": "computer_use_preview",
                "display_width": 1,
                "display_height": 1,
                "environment": "linux",
            },
            "tools[0].type",
        ),
        ({"type": "programmatic_tool_calling"}, "tools[0].type"),
        ({"type": "tool_search"}, "tools[0].execution"),
        ({"type": "tool_search", "execution": "server"}, "tools[0].execution"),
        ({"type": "shell", "environment": {"type": "container_auto"}}, "tools[0].environment"),
        ({"type": "shell", "environment": {"type": "container_reference"}}, "tools[0].environment"),
        ({"type": "mcp", "server_label": "s", "connector_id": "c"}, "tools[0].connector_id"),
        ({"type": "mcp", "server_label": "s", "tunnel_id": "t"}, "tools[0].tunnel_id"),
        ({**FUNCTION, "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers"),
        ({**CUSTOM, "allowed_callers": []}, "tools[0].allowed_callers"),
        ({"type": "apply_patch", "allowed_callers": ["programmatic"]}, "tools[0].allowed_callers"),
    ],
)
def test_what_no_chat_model_can_be_given_is_refused_by_name(tool: Any, param: str) -> None:
    """Ours: nothing is accepted and forgotten; the text says what to do instead."""
    assert refuse(tool) == (param, "unsupported_parameter")
    with pytest.raises(RequestError) as caught:
        build(tool)
    assert len(caught.value.message.split(". ")) >= 2


def test_a_description_is_not_repeated_without_end() -> None:
    """Ours: a small request must not become a prompt of gigabytes."""
    members = [say(name=f"say{number}") for number in range(2_000)]
    assert len(build(namespace("n", *members, description="d" * 500)).offered) == 2_000
    assert refuse(namespace("n", *members, description="d" * 600)) == (
        "tools[0].description",
        "invalid_value",
    )


def test_direct_calls_among_the_allowed_ones_are_enough() -> None:
    """Spec: allowed_callers."""
    assert names(build({**FUNCTION, "allowed_callers": ["direct", "programmatic"]})) == ["f"]


def test_mcp_needs_an_address_and_its_package() -> None:
    """Ours."""
    assert refuse({"type": "mcp", "server_label": "s"}) == (
        "tools[0].server_url",
        "missing_required_parameter",
    )
    assert refuse(FUNCTION, MCP, can_call_mcp=False) == ("tools[1].type", "unsupported_parameter")


# Without a provider, without tools


def test_a_web_search_without_a_provider_is_left_out_and_told() -> None:
    """Ours: Codex offers one with every request."""
    box = build(FUNCTION, WEB, can_search=False)
    assert (names(box), box.hosted, box.hidden) == (["f"], (), frozenset({"web_search"}))
    ((code, text),) = box.warnings
    assert code == "tools_left_out"
    assert "web_search" in text


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([FUNCTION, {"type": "web_search_preview"}], {"type": "web_search_preview"}),
        ([WEB], "required"),
        (
            [FUNCTION, WEB],
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        ),
    ],
)
def test_a_web_search_without_a_provider_cannot_be_forced(tools: Any, choice: Any) -> None:
    """Ours: what is demanded is done or refused."""
    assert refuse(*tools, choice=choice, can_search=False) == ("tool_choice", "unsupported_parameter")


def test_a_model_without_tools_gets_none_and_the_response_says_so() -> None:
    """Profile.tools."""
    box = build(FUNCTION, MCP, profile=Profile(tools="none"))
    assert (box.offered, box.hosted, box.choice, box.hidden) == ((), (), "none", frozenset({"f"}))
    assert box.warnings == [("tools_left_out", "The model cannot call tools; left out: f, s.")]
    assert refuse(FUNCTION, choice="required", profile=Profile(tools="none")) == (
        "tool_choice",
        "unsupported_value",
    )
    assert build(FUNCTION, choice="none", profile=Profile(tools="none")).warnings == []
    assert names(build(FUNCTION, profile=Profile(tools="schema"))) == ["f"]


# The choice among tools


ALL = (FUNCTION, CUSTOM, namespace("n", say()), SEARCH, {"type": "shell"}, {"type": "apply_patch"}, WEB, MCP)
FLAT = frozenset({"f", "c", "n__say", "tool_search", "shell", "apply_patch", "web_search"})


@pytest.mark.parametrize(
    ("choice", "word", "forced"),
    [
        ("auto", "auto", None),
        ("required", "required", None),
        ({"type": "function", "name": "f"}, "required", "f"),
        ({"type": "function", "name": "say"}, "required", "n__say"),
        ({"type": "custom", "name": "c"}, "required", "c"),
        ({"type": "shell"}, "required", "shell"),
        ({"type": "apply_patch"}, "required", "apply_patch"),
        ({"type": "web_search_preview"}, "required", "web_search"),
        ({"type": "mcp", "server_label": "s"}, "required", None),
        ({"type": "mcp", "server_label": "s", "name": "t"}, "required", "s__t"),
    ],
)
def test_every_choice_says_what_must_be_called(choice: Any, word: str, forced: str | None) -> None:
    """Spec: tool_choice."""
    box = build(*ALL, choice=choice)
    assert (box.choice, box.forced) == (word, forced)
    if forced is not None:
        assert box.hidden == FLAT - ({forced} - {"web_search"})


def test_no_tools_means_none_at_all() -> None:
    """Spec: tool_choice none."""
    box = build(*ALL, choice="none")
    assert (box.offered, box.hosted, box.choice, box.hidden) == ((), (), "none", FLAT)


@pytest.mark.parametrize(
    ("allowed", "offered", "hosted"),
    [
        ([{"type": "function", "name": "f"}], ["f"], []),
        ([{"type": "function", "name": "say"}], ["n__say"], []),
        ([{"type": "function", "name": "say", "namespace": "n"}], ["n__say"], []),
        ([{"type": "function", "name": "say", "namespace": "other"}], [], []),
        ([{"type": "namespace", "name": "n"}], ["n__say"], []),
        ([{"type": "custom", "name": "c"}, {"type": "shell"}], ["c", "shell"], []),
        ([{"type": "mcp", "server_label": "s"}], [], ["mcp"]),
        ([{"type": "web_search"}, {"type": "tool_search"}], ["tool_search"], ["web_search"]),
        ([], [], []),
    ],
)
def test_allowed_tools_are_a_hard_limit_over_every_kind(allowed: Any, offered: Any, hosted: Any) -> None:
    """Spec: allowed_tools."""
    box = build(*ALL, choice={"type": "allowed_tools", "mode": "auto", "tools": allowed})
    assert names(box) == offered
    assert [str(type(tool).__struct_config__.tag) for tool in box.hosted] == hosted
    assert box.hidden == FLAT - set(offered)


@pytest.mark.parametrize("kind", ["function", "custom", "namespace"])
def test_twenty_thousand_allowed_tools_are_looked_up_not_compared(kind: str) -> None:
    """Ours: comparing each rule with each tool would hold everybody up for minutes."""
    names_ = [f"f{number}" for number in range(20_000)]
    if kind == "namespace":
        members = ({"type": "function", "name": name} for name in names_)
        tools = [namespace("n", *members, description="")]
        allowed = [{"type": "function", "name": name, "namespace": "n"} for name in names_]
    else:
        tools = [{"type": kind, "name": name} for name in names_]
        allowed = tools
    box = build(*tools, choice={"type": "allowed_tools", "mode": "auto", "tools": allowed[::-1]})
    assert len(box.offered) == len(names_)
    assert not box.hidden


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "function", "name": ["f"]},
        {"type": "function", "name": {"a": 1}},
        {"type": ["function"], "name": "f"},
        {"type": "mcp", "server_label": []},
    ],
)
def test_an_allowed_tool_whose_name_is_no_text_is_not_found(rule: Any) -> None:
    """Ours: the rules of allowed_tools are any JSON objects."""
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [rule]}
    assert refuse(FUNCTION, MCP, choice=choice) == ("tool_choice.tools[0]", "invalid_value")


@pytest.mark.parametrize(
    ("limits", "allowed", "kept"),
    [
        (None, [{"name": "t"}, {"name": "u"}], ["t", "u"]),
        (["t", "v"], [{"name": "t"}, {"name": "u"}], ["t"]),
        ({"tool_names": ["t"], "read_only": True}, [{"name": "t"}], {"tool_names": ["t"], "read_only": True}),
        (["t"], [{"name": "u"}, {}], ["t"]),
    ],
)
def test_allowed_tools_of_an_mcp_server_narrow_its_own_limits(limits: Any, allowed: Any, kept: Any) -> None:
    """Spec: allowed_tools names a server, or tools of it."""
    rules = [{"type": "mcp", "server_label": "s", **rule} for rule in allowed]
    declared = MCP if limits is None else {**MCP, "allowed_tools": limits}
    (tool,) = build(declared, choice={"type": "allowed_tools", "mode": "auto", "tools": rules}).hosted
    assert isinstance(tool, McpTool)
    assert msgspec.to_builtins(tool.allowed_tools) == kept


def test_a_chosen_mcp_server_is_all_that_is_left() -> None:
    """Spec: tool_choice mcp."""
    box = build(*ALL, choice={"type": "mcp", "server_label": "s", "name": "t"})
    assert box.offered == ()
    (tool,) = box.hosted
    assert isinstance(tool, McpTool)
    assert tool.allowed_tools == ["t"]


@pytest.mark.parametrize(
    ("tools", "choice", "param", "code"),
    [
        ([], "required", "tool_choice", "invalid_value"),
        (
            [FUNCTION],
            {"type": "allowed_tools", "mode": "required", "tools": []},
            "tool_choice",
            "invalid_value",
        ),
        ([FUNCTION], {"type": "shell"}, "tool_choice", "invalid_value"),
        ([FUNCTION], {"type": "web_search_preview"}, "tool_choice", "invalid_value"),
        ([FUNCTION], {"type": "file_search"}, "tool_choice.type", "unsupported_parameter"),
        ([FUNCTION], {"type": "computer"}, "tool_choice.type", "unsupported_parameter"),
        ([FUNCTION], {"type": "programmatic_tool_calling"}, "tool_choice.type", "unsupported_parameter"),
        (
            [SEARCH, {**FUNCTION, "defer_loading": True}],
            {"type": "function", "name": "f"},
            "tool_choice",
            "invalid_value",
        ),
        (
            [namespace("a", say()), namespace("b", say())],
            {"type": "function", "name": "say"},
            "tool_choice",
            "invalid_value",
        ),
    ],
)
def test_a_choice_that_cannot_be_carried_out_is_refused(
    tools: Any, choice: Any, param: str, code: str
) -> None:
    """Ours: a demand is met or refused."""
    assert refuse(*tools, choice=choice) == (param, code)


def test_a_plain_function_goes_before_members_of_its_name() -> None:
    """Ours."""
    box = build(namespace("a", say()), say(), choice={"type": "function", "name": "say"})
    assert box.forced == "say"
