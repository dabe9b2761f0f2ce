"""The tools that this server runs, with the fakes of search and MCP."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from antiphon.backends import BackendEvent, ItemClosed, ItemEvent, ItemOpened
from antiphon.context.toolbox import Toolbox
from antiphon.engine.approvals import UsedApprovals
from antiphon.engine.hosted_tools import HostedTools
from antiphon.engine.mcp_rules import find_approvals, is_allowed, needs_approval
from antiphon.hosted import (
    HostedToolError,
    McpConnector,
    McpError,
    McpResult,
    McpToolFacts,
    SearchHit,
    SearchProvider,
)
from antiphon.hosted.scripted import ScriptedMcpConnector, ScriptedMcpServer, ScriptedSearch
from antiphon.protocol.events import EVENT_TYPES
from antiphon.protocol.items import Item, decode_stored_item
from antiphon.protocol.lifecycle import Lifecycle
from antiphon.protocol.tools import McpApprovalRules, McpTool, McpToolFilter, Tool, decode_tools

URL = "http://a.test/mcp"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = McpToolFacts("weather", SCHEMA, "The weather.", {"readOnlyHint": True})
ALARM = McpToolFacts("alarm", {"type": "object"})
HIT = SearchHit("https://a.no/deep", "Deep", "Deep fjords.")
TOKEN = "token-abcdef-123456"
WEB = {"type": "web_search"}
MCP = {"type": "mcp", "server_label": "home", "server_url": URL, "require_approval": "never"}


def build_connector(**more: Any) -> ScriptedMcpConnector:
    answers = {"weather": McpResult("4 degrees"), "alarm": McpResult("It is broken.", is_error=True)}
    fields: dict[str, Any] = {"tools": [WEATHER, ALARM], "answers": answers, **more}
    return ScriptedMcpConnector({URL: ScriptedMcpServer(**fields)})


def read_tools(*tools: dict[str, Any]) -> tuple[Tool, ...]:
    return tuple(decode_tools(json.dumps(tools).encode()))


def read_items(*items: dict[str, Any]) -> list[Item]:
    return [decode_stored_item(json.dumps(item).encode()) for item in items]


class Run:
    """One response's hosted tools: opened, asked, and what came of it."""

    def __init__(
        self,
        *tools: dict[str, Any],
        calls: Sequence[tuple[str, str]] = (),
        remembered: Sequence[dict[str, Any]] = (),
        new: Sequence[dict[str, Any]] = (),
        search: SearchProvider | None = None,
        mcp: McpConnector | None = None,
        max_calls: int | None = None,
        taken: frozenset[str] = frozenset(),
        approvals: UsedApprovals | None = None,
        tenant: str = "a",
    ) -> None:
        self.events: list[BackendEvent] = []
        self.hosted = HostedTools(
            toolbox=Toolbox(hosted=read_tools(*tools), hidden=taken),
            remembered=read_items(*remembered),
            input_items=read_items(*new),
            search=search,
            mcp=mcp,
            max_calls=max_calls,
            take_approval=partial((approvals or UsedApprovals()).take, tenant),
        )
        asyncio.run(self._run(calls))

    async def _run(self, calls: Sequence[tuple[str, str]]) -> None:
        async with asyncio.timeout(20):
            try:
                async for batch in self.hosted.open():
                    self.events += batch
                self.first = self.hosted.offered
                for name, arguments in calls:
                    assert self.hosted.owns(name)
                    async for batch in self.hosted.run(name, arguments):
                        self.events += batch
            finally:
                await self.hosted.close()

    @property
    def names(self) -> list[str]:
        """The events in short: what opened, what happened inside, what closed."""
        return [event.name if isinstance(event, ItemEvent) else type(event).__name__ for event in self.events]

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items that were made."""
        return [json.loads(event.item) for event in self.events if isinstance(event, ItemClosed)]

    @property
    def warnings(self) -> list[str]:
        return [code for code, _ in self.hosted.warnings]


def check_stream(events: Sequence[BackendEvent]) -> None:
    """Every event has all its fields, and stands where the lifecycle table allows it."""
    lifecycle = Lifecycle()
    lifecycle.advance("response.created")
    lifecycle.advance("response.in_progress")
    position = -1
    for event in events:
        if isinstance(event, ItemOpened):
            position += 1
            opened = json.loads(event.item)
            lifecycle.advance("response.output_item.added", position, opened["type"])
        elif isinstance(event, ItemEvent):
            lifecycle.advance(event.name, position)
            needed = {
                field.encode_name
                for field in msgspec.structs.fields(EVENT_TYPES[event.name])
                if field.required
            }
            assert needed - {"sequence_number", "item_id", "output_index"} == set(event.fields)
        elif isinstance(event, ItemClosed):
            lifecycle.advance("response.output_item.done", position)
            closed = json.loads(event.item)
            assert closed["type"] == opened["type"]
            assert "id" not in closed
    lifecycle.advance("response.completed")


# Web search


def test_a_search_is_one_item_with_its_hits_and_sources() -> None:
    """Responses API, 4.3: in_progress, searching, completed; the action is filled in."""
    search = ScriptedSearch({"fjords": [HIT]})
    run = Run(WEB, search=search, calls=[("web_search", '{"query": " fjords "}')])
    check_stream(run.events)
    assert run.names == [
        "ItemOpened",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "ItemClosed",
    ]
    assert run.items == [
        {
            "type": "web_search_call",
            "status": "completed",
            "action": {
                "type": "search",
                "query": "fjords",
                "queries": ["fjords"],
                "sources": [{"type": "url", "url": "https://a.no/deep"}],
            },
            "results": [{"url": "https://a.no/deep", "title": "Deep", "snippet": "Deep fjords."}],
        }
    ]
    assert run.hosted.citations.find("https://a.no/deep")
    assert (run.warnings, run.hosted.must_stop) == ([], False)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (WEB, {"count": 6}),
        ({**WEB, "search_context_size": "low"}, {"count": 3}),
        ({"type": "web_search_preview", "search_context_size": "high"}, {"count": 12}),
        (
            {**WEB, "filters": {"allowed_domains": ["a.no"], "blocked_domains": ["b.no"]}},
            {"count": 6, "allowed_domains": ["a.no"], "blocked_domains": ["b.no"]},
        ),
        ({**WEB, "user_location": {"type": "approximate", "country": "NO"}}, {"count": 6, "country": "NO"}),
    ],
)
def test_the_settings_of_a_search_reach_the_provider(tool: dict[str, Any], expected: dict[str, Any]) -> None:
    """Responses API, web search: search_context_size, filters, user_location."""
    search = ScriptedSearch({})
    Run(tool, search=search, calls=[("web_search", '{"query":"x"}')])
    (query,) = search.queries
    asked = {name: getattr(query, name) for name in expected}
    assert asked == expected


def test_the_model_is_told_where_the_user_is() -> None:
    """Ours: a place that only some engines could use has an effect on every query that the model writes."""
    place = {"type": "approximate", "city": "Oslo", "country": "NO", "timezone": "Europe/Oslo"}
    run = Run({**WEB, "user_location": place}, search=ScriptedSearch({}))
    (offered,) = run.first
    assert (offered.name, offered.kind, offered.function.name) == ("web_search", "web_search", "web_search")
    assert "Oslo, NO, time zone Europe/Oslo" in (offered.function.description or "")


@pytest.mark.parametrize(
    "arguments", ['{"query":"fjords"}', "{}", "no JSON", "[]", '{"query": 7}', "[" * 5_000]
)
def test_a_search_that_fails_is_an_item_that_says_so(arguments: str) -> None:
    """Ours: the model reads why, the response goes on."""
    search = ScriptedSearch({"fjords": HostedToolError("The web search cannot be reached.")})
    run = Run(WEB, search=search, calls=[("web_search", arguments)])
    check_stream(run.events)
    (item,) = run.items
    assert (item["status"], item["results"]) == ("failed", [])
    assert "cannot be reached" in item["error"] or "no query" in item["error"]


def test_a_search_without_external_access_is_left_out() -> None:
    """Ours: `external_web_access: false` asks for an index that is not here."""
    run = Run({**WEB, "external_web_access": False}, search=ScriptedSearch({}))
    assert (run.first, run.warnings) == ((), ["tools_left_out"])


def test_a_search_for_images_finds_pages_and_says_so() -> None:
    """Ours: nothing is accepted without effect."""
    run = Run(
        {"type": "web_search_preview", "search_content_types": ["text", "image"]}, search=ScriptedSearch({})
    )
    assert ([tool.name for tool in run.first], run.warnings) == (["web_search"], ["search_images_left_out"])


# Listing MCP servers


def test_a_server_is_listed_once_and_its_tools_offered_flat() -> None:
    """Responses API, 4.3: mcp_list_tools, in_progress then completed."""
    run = Run({**MCP, "server_description": "My home."}, mcp=build_connector())
    check_stream(run.events)
    assert run.names == [
        "ItemOpened",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "ItemClosed",
    ]
    (item,) = run.items
    assert item["server_label"] == "home"
    assert item["tools"][1] == {
        "name": "weather",
        "description": "The weather.",
        "input_schema": SCHEMA,
        "annotations": {"readOnlyHint": True},
    }
    assert [(tool.name, tool.kind, tool.own_name, tool.server_label) for tool in run.first] == [
        ("home__alarm", "mcp", "alarm", "home"),
        ("home__weather", "mcp", "weather", "home"),
    ]
    assert run.first[1].function.description == "The weather.\n\nPart of home: My home."
    assert run.first[1].function.parameters == SCHEMA


@pytest.mark.parametrize(
    ("before", "now", "listed"),
    [
        (None, None, False),
        (None, ["weather"], False),
        (None, {"read_only": True}, False),
        (["weather"], ["weather"], False),
        (["weather", "alarm"], ["alarm"], False),
        (["weather"], ["alarm"], True),
        (["weather"], None, True),
        ({"read_only": True}, {"read_only": True}, False),
        ({"read_only": True}, {"read_only": False}, True),
    ],
)
def test_a_server_that_the_path_tells_of_is_not_listed_again(before: Any, now: Any, listed: bool) -> None:
    """Responses API, mcp: the tools are imported once; other `allowed_tools` may need what was left out."""

    def declare(allowed: Any) -> dict[str, Any]:
        return {**MCP, "allowed_tools": allowed} if allowed is not None else MCP

    first = Run(declare(before), mcp=build_connector())
    connector = build_connector()
    again = Run(declare(now), mcp=connector, remembered=first.items)
    assert [item["type"] for item in again.items] == (["mcp_list_tools"] if listed else [])
    assert len(connector.servers) == listed
    fresh = Run(declare(now), mcp=build_connector())
    assert [tool.function for tool in again.first] == [tool.function for tool in fresh.first]


def test_a_listing_that_the_client_brings_holds() -> None:
    """Ours: who keeps the history itself replays the listing as it was shown."""
    (listing,) = Run({**MCP, "allowed_tools": ["weather"]}, mcp=build_connector()).items
    del listing["allowed_tools"]
    connector = build_connector()
    run = Run(MCP, mcp=connector, new=[listing])
    assert ([tool.own_name for tool in run.first], connector.servers) == (["weather"], [])


@pytest.mark.parametrize(
    "connector", [ScriptedMcpConnector({}), build_connector(tools=McpError("It says no.", error_code=-1))]
)
def test_a_server_that_cannot_be_listed_leaves_the_response_going(connector: ScriptedMcpConnector) -> None:
    """Responses API, mcp_list_tools: `error`; ours: a warning, and no tools."""
    run = Run(WEB, MCP, mcp=connector, search=ScriptedSearch({}))
    check_stream(run.events)
    assert run.names[2] == "response.mcp_list_tools.failed"
    (item,) = run.items
    assert item["tools"] == []
    assert isinstance(item["error"], str)
    assert run.warnings == ["mcp_listing_failed"]
    assert [tool.name for tool in run.first] == ["web_search"]


def test_a_failed_listing_is_tried_again_in_the_next_round() -> None:
    """Ours: a server that was down may be up."""
    failed = Run(MCP, mcp=ScriptedMcpConnector({}))
    again = Run(MCP, mcp=build_connector(), remembered=failed.items)
    assert len(again.first) == 2


def test_several_servers_are_listed_in_the_order_of_the_tools() -> None:
    """Ours: the output does not depend on who answers first."""
    other = {**MCP, "server_label": "away", "server_url": "http://b.test/mcp"}
    run = Run(MCP, other, mcp=build_connector())
    check_stream(run.events)
    assert [(item["server_label"], len(item["tools"])) for item in run.items] == [("home", 2), ("away", 0)]


def test_a_tool_that_cannot_be_offered_is_named() -> None:
    """Ours: nothing is lost silently."""
    odd = McpToolFacts("odd", {"type": "array"})
    run = Run(MCP, mcp=build_connector(tools=[WEATHER, odd]), taken=frozenset({"home__weather"}))
    assert (run.first, run.warnings) == ((), ["tools_left_out"])
    assert "odd, weather" in run.hosted.warnings[0][1]


# Calling MCP tools


def test_a_tool_that_its_server_lists_wrongly_is_left_out_alone() -> None:
    """Ours: the others are offered, and the listing holds these alone."""
    broken = McpToolFacts("broken", {}, fault="it is not as MCP has it")
    run = Run(MCP, mcp=build_connector(tools=[WEATHER, broken]))
    assert [tool.name for tool in run.hosted.offered] == ["home__weather"]
    assert [tool["name"] for tool in run.items[0]["tools"]] == ["weather"]
    assert run.warnings == ["tools_left_out"]


def test_a_call_is_one_item_with_its_output() -> None:
    """Responses API, 4.3: in_progress, arguments delta and done, completed."""
    connector = build_connector()
    run = Run(MCP, mcp=connector, calls=[("home__weather", '{"city":"Oslo"}')])
    check_stream(run.events)
    assert run.names[4:] == [
        "ItemOpened",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "ItemClosed",
    ]
    assert run.items[1] == {
        "type": "mcp_call",
        "server_label": "home",
        "name": "weather",
        "approval_request_id": None,
        "arguments": '{"city":"Oslo"}',
        "output": "4 degrees",
        "error": None,
        "status": "completed",
    }
    assert connector.calls == [("home", "weather", {"city": "Oslo"})]
    assert connector.closed == 1


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        (
            "alarm",
            "{}",
            {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "It is broken."}]},
        ),
        (
            "weather",
            "[1]",
            {"type": "mcp_protocol_error", "code": -32602, "message": "The arguments are no JSON object."},
        ),
    ],
)
def test_a_call_that_fails_has_a_typed_error(name: str, arguments: str, error: dict[str, Any]) -> None:
    """Responses API, mcp_call: `error` is mcp_protocol_error, mcp_tool_execution_error or http_error."""
    run = Run(MCP, mcp=build_connector(), calls=[(f"home__{name}", arguments)])
    check_stream(run.events)
    item = run.items[1]
    assert (item["status"], item["output"], item["error"]) == ("failed", None, error)


def test_a_session_that_broke_is_opened_anew_for_the_next_call() -> None:
    """Ours: a call is never sent twice, and one that failed does not fail the others."""
    connector = build_connector(
        answers={"weather": McpError("It hangs.", error_code=504), "alarm": McpResult("rings")}
    )
    run = Run(MCP, mcp=connector, calls=[("home__weather", "{}"), ("home__alarm", "")])
    assert run.items[1]["error"] == {"type": "http_error", "code": 504, "message": "It hangs."}
    assert run.items[2]["output"] == "rings"
    assert (len(connector.servers), connector.closed) == (2, 2)


def test_secrets_reach_the_server_alone() -> None:
    """Responses API: `authorization` and `headers` of mcp are never echoed."""
    connector = build_connector(token=TOKEN)
    run = Run(
        {**MCP, "authorization": TOKEN, "headers": {"X-Key": "key-9876543"}},
        mcp=connector,
        calls=[("home__weather", "{}")],
    )
    (server,) = connector.servers
    assert (server.authorization, server.headers) == (TOKEN, {"X-Key": "key-9876543"})
    told = repr(run.events) + repr(run.hosted.warnings) + repr(run.hosted.offered)
    assert TOKEN not in told
    assert "key-9876543" not in told
    assert URL not in told


# Limits


def test_calls_beyond_the_limit_are_not_run() -> None:
    """Responses API, `max_tool_calls`: the total of calls to built-in tools; further attempts are ignored."""
    search, connector = ScriptedSearch({}), build_connector()
    calls = [("web_search", '{"query":"x"}'), ("home__weather", "{}"), ("web_search", '{"query":"y"}')]
    run = Run(WEB, MCP, search=search, mcp=connector, calls=calls, max_calls=2)
    assert [item["type"] for item in run.items] == ["mcp_list_tools", "web_search_call", "mcp_call"]
    assert len(run.first) == 3
    assert (run.hosted.offered, run.hosted.exhausted, run.warnings) == ((), True, ["hosted_call_dropped"])
    assert run.hosted.owns("web_search")


def test_approval_requests_are_not_counted() -> None:
    """Ours: only what is run counts."""
    run = Run(
        {**MCP, "require_approval": "always"},
        mcp=build_connector(),
        calls=[("home__weather", "{}")],
        max_calls=1,
    )
    assert not run.hosted.exhausted


# Approvals


def ask_approval() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A request for approval with the id that it got, and the items before it."""
    run = Run(
        {**MCP, "require_approval": "always"},
        mcp=build_connector(),
        calls=[("home__weather", '{"city":"Oslo"}')],
    )
    check_stream(run.events)
    assert run.hosted.must_stop
    assert run.names[4:] == ["ItemOpened", "ItemClosed"]
    return {**run.items[1], "id": "mcpr_1"}, run.items[:1]


def respond(approve: bool = True, request_id: str = "mcpr_1") -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve}


def test_a_call_that_needs_approval_is_asked_for() -> None:
    """Responses API, mcp_approval_request; `require_approval` is `always` unless it is told."""
    request, _ = ask_approval()
    assert request == {
        "id": "mcpr_1",
        "type": "mcp_approval_request",
        "server_label": "home",
        "name": "weather",
        "arguments": '{"city":"Oslo"}',
        # Stored, and cut where the item is shown.
        "server_url": URL,
    }


def test_an_approved_call_is_made_at_once() -> None:
    """Responses API, mcp_approval_response: the mcp_call names the request."""
    request, listing = ask_approval()
    connector = build_connector()
    run = Run(MCP, mcp=connector, remembered=[*listing, request], new=[respond()])
    check_stream(run.events)
    (item,) = run.items
    assert (item["type"], item["approval_request_id"], item["output"]) == ("mcp_call", "mcpr_1", "4 degrees")
    assert connector.calls == [("home", "weather", {"city": "Oslo"})]


def test_a_call_that_is_not_approved_is_not_made() -> None:
    """Responses API, mcp_approval_response with `approve: false`."""
    request, listing = ask_approval()
    connector = build_connector()
    run = Run(MCP, mcp=connector, remembered=[*listing, request], new=[respond(approve=False)])
    assert (run.events, run.warnings, connector.calls) == ([], [], [])


def test_an_approval_counts_once() -> None:
    """Ours: a call is made once, however often it is approved."""
    request, listing = ask_approval()
    connector = build_connector()
    run = Run(MCP, mcp=connector, remembered=[*listing, request], new=[respond(), respond()])
    assert (len(connector.calls), run.warnings) == (1, ["approval_ignored"])
    run = Run(MCP, mcp=connector, remembered=[*listing, request, respond(approve=False)], new=[respond()])
    assert (len(connector.calls), run.warnings) == (1, ["approval_ignored"])


def test_an_approval_counts_once_on_all_branches_of_one_tenant() -> None:
    """Ours: whoever repeats a request whose answer was lost must not repeat what it did."""
    request, listing = ask_approval()
    connector, used = build_connector(), UsedApprovals()

    def approve(tenant: str, connector: ScriptedMcpConnector = connector) -> Run:
        path = [*listing, request]
        return Run(MCP, mcp=connector, remembered=path, new=[respond()], approvals=used, tenant=tenant)

    # A server that is not there was not called, and the approval still counts.
    assert approve("a", ScriptedMcpConnector({})).items[0]["status"] == "failed"
    assert approve("a").hosted.has_acted
    again = approve("a")
    assert (len(connector.calls), again.warnings, again.hosted.has_acted) == (1, ["approval_ignored"], False)
    (item,) = again.items
    assert (item["status"], item["approval_request_id"]) == ("failed", "mcpr_1")
    assert "used before" in item["error"]["message"]
    assert approve("b").warnings == []
    assert len(connector.calls) == 2


def test_approvals_are_remembered_up_to_a_limit() -> None:
    """Ours: every table is bounded; the oldest leaves."""
    used = UsedApprovals(limit=2)
    assert [used.take("a", name) for name in ("1", "1", "2", "3", "2", "1")] == [
        *(True, False, True, True),
        *(False, True),
    ]


@pytest.mark.parametrize(
    ("url", "is_same"),
    [
        (f"{URL}?key=1", True),
        ("HTTP://A.test:80/mcp", True),
        ("http://evil.test/mcp", False),
        ("http://a.test:81/mcp", False),
        ("https://a.test/mcp", False),
        ("http://a.test/mcp2", False),
    ],
)
def test_an_approval_is_one_for_the_server_that_asked(url: str, is_same: bool) -> None:
    """Ours: a label is the client's word, and may stand for another server in the next request."""
    request, _ = ask_approval()
    answers = {"weather": McpResult("4 degrees")}
    connector = ScriptedMcpConnector({url: ScriptedMcpServer(tools=[WEATHER], answers=answers)})
    run = Run({**MCP, "server_url": url}, mcp=connector, remembered=[request], new=[respond()])
    assert len(connector.calls) == is_same
    assert run.warnings == ([] if is_same else ["approval_ignored"])
    assert run.items[-1]["status"] == ("completed" if is_same else "failed")


def test_a_history_that_the_client_replays_calls_nothing_again() -> None:
    """Ours: with `store: false` request, response and call all come back as input."""
    request, listing = ask_approval()
    call = {
        "type": "mcp_call",
        "server_label": "home",
        "name": "weather",
        "arguments": "{}",
        "output": "4 degrees",
    }
    connector = build_connector()
    new = [*listing, request, respond(), {**call, "approval_request_id": "mcpr_1"}]
    run = Run(MCP, mcp=connector, new=new)
    assert (run.events, run.warnings, connector.calls) == ([], [], [])


def test_an_approved_call_of_a_server_that_is_not_declared_fails_as_an_item() -> None:
    """Ours: without the declaration there is no address and no authorization."""
    request, _ = ask_approval()
    run = Run(mcp=build_connector(), remembered=[request], new=[respond()])
    (item,) = run.items
    assert (item["status"], "not among the tools" in item["error"]["message"]) == ("failed", True)


@pytest.mark.parametrize("allowed", [["alarm"], {"tool_names": ["alarm"]}, {"read_only": False}])
def test_an_approved_call_of_a_tool_that_is_not_allowed_fails_as_an_item(allowed: Any) -> None:
    """Ours: `allowed_tools` is a hard limit."""
    request, _ = ask_approval()
    connector = build_connector()
    run = Run({**MCP, "allowed_tools": allowed}, mcp=connector, remembered=[request], new=[respond()])
    assert run.items[-1]["status"] == "failed"
    assert connector.calls == []


def test_an_approval_without_its_request_calls_nothing() -> None:
    """Ours: such a request is refused before; here it leads to nothing."""
    assert find_approvals([], read_items(respond(request_id="mcpr_2"))).ignored == ["mcpr_2"]


@pytest.mark.parametrize(
    ("rules", "needed"),
    [
        (None, {"weather", "alarm"}),
        ("always", {"weather", "alarm"}),
        ("never", set()),
        (McpApprovalRules(never=McpToolFilter(tool_names=["alarm"])), {"weather"}),
        (McpApprovalRules(never=McpToolFilter(read_only=True)), {"alarm"}),
        (McpApprovalRules(never=McpToolFilter()), {"weather", "alarm"}),
        (McpApprovalRules(always=McpToolFilter(tool_names=["alarm"])), {"weather", "alarm"}),
        (
            McpApprovalRules(
                always=McpToolFilter(tool_names=["alarm"]), never=McpToolFilter(read_only=False)
            ),
            {"weather", "alarm"},
        ),
    ],
)
def test_a_call_goes_without_approval_only_where_the_request_says_so(rules: Any, needed: set[str]) -> None:
    """Responses API, mcp: require_approval always, never, or filters of both."""
    declared = McpTool(server_label="home", server_url=URL, require_approval=rules)
    assert {tool.name for tool in (WEATHER, ALARM) if needs_approval(tool, declared)} == needed


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (None, {"weather", "alarm"}),
        ([], set()),
        (["weather", "other"], {"weather"}),
        (McpToolFilter(), {"weather", "alarm"}),
        (McpToolFilter(read_only=True), {"weather"}),
        (McpToolFilter(read_only=False), {"alarm"}),
        (McpToolFilter(tool_names=["weather", "alarm"], read_only=True), {"weather"}),
    ],
)
def test_allowed_tools_are_names_or_a_filter(allowed: Any, names: set[str]) -> None:
    """Responses API, mcp: `allowed_tools`; `read_only` goes by the annotation `readOnlyHint`."""
    assert {tool.name for tool in (WEATHER, ALARM) if is_allowed(tool, allowed)} == names


def test_opening_again_does_nothing() -> None:
    """Ours: a response that was refused before it began may be asked for again with the same tools."""
    request, listing = ask_approval()
    connector = build_connector()
    hosted = HostedTools(
        toolbox=Toolbox(hosted=read_tools(MCP)),
        remembered=read_items(*listing, request),
        input_items=read_items(respond()),
        search=None,
        mcp=connector,
        max_calls=None,
        take_approval=partial(UsedApprovals().take, "a"),
    )

    async def run() -> list[int]:
        counts = []
        for _ in range(2):
            counts.append(len([batch async for batch in hosted.open()]))
        await hosted.close()
        return counts

    assert asyncio.run(run()) == [2, 0]
    assert (len(connector.calls), len(hosted.offered), hosted.warnings) == (1, 2, [])


# Leaving


def test_a_client_that_leaves_while_servers_are_listed_leaves_nothing_running() -> None:
    """Ours: closing the source ends whatever runs."""

    class Slow(ScriptedMcpConnector):
        """Lists for ever."""

        async def connect(self, server: Any) -> Any:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(server.label)

    started = asyncio.Event()
    ended: list[str] = []

    async def run() -> int:
        hosted = HostedTools(
            toolbox=Toolbox(hosted=read_tools(MCP)),
            remembered=[],
            input_items=[],
            search=None,
            mcp=Slow({}),
            max_calls=None,
            take_approval=partial(UsedApprovals().take, "a"),
        )
        source = hosted.open()
        assert [type(event) for event in await anext(source)] == [ItemOpened, ItemEvent]
        await started.wait()
        await source.aclose()
        await hosted.close()
        return len(asyncio.all_tasks())

    assert asyncio.run(asyncio.wait_for(run(), 20)) <= 2
    assert ended == ["home"]
