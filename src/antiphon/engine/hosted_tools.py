"""The tools that this server runs for one response: web search, the tools of MCP servers, and `recall`.

Calls come in by the flat name that a chat model used; items go out as backend events, without ids. It knows no
stream and no store. Invariants: what a failing tool has to say goes into its item, for the model to read, and never
fails the response; no call beyond `max_calls` is run; every item that is opened is closed, unless the client leaves.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from antiphon.backends import BackendEvent, ItemClosed, ItemEvent, ItemOpened
from antiphon.context.tool_choices import WEB_SEARCHES
from antiphon.context.tool_names import WEB_SEARCH_NAME, flatten_name
from antiphon.context.toolbox import OfferedTool, Toolbox
from antiphon.engine.citations import CitationFinder
from antiphon.engine.hosted_functions import WebSearch, tell_mcp_tool, tell_web_search
from antiphon.engine.mcp_rules import (
    Granted,
    find_approvals,
    find_listing,
    is_allowed,
    needs_approval,
    to_plain,
)
from antiphon.engine.mcp_servers import MAX_SERVERS, DeclaredServer
from antiphon.engine.recall import (
    RECALL_NAME,
    RECALL_SERVER,
    RECALL_TOOL,
    Recall,
    RecallError,
    tell_failure,
)
from antiphon.hosted import (
    HostedToolError,
    McpConnector,
    McpError,
    McpResult,
    McpToolFacts,
    SearchHit,
    SearchProvider,
    SearchQuery,
)
from antiphon.protocol.errors import ProtocolError, RequestError
from antiphon.protocol.items import Item
from antiphon.protocol.mcp_addresses import cut_query
from antiphon.protocol.tools import (
    McpTool,
    Tool,
    WebSearchPreviewTool,
    WebSearchTool,
)

_log = logging.getLogger("antiphon.engine")

Batches: TypeAlias = AsyncGenerator[list[BackendEvent], None]
#: The output of a call, or its typed error.
_Answer: TypeAlias = tuple[str | None, dict[str, Any] | None]

#: How many hits the model is shown.
HIT_COUNTS: Final = {"low": 3, "medium": 6, "high": 12}
#: Servers that are listed at the same time.
_LISTED_AT_ONCE: Final = 8
_INVALID_ARGUMENTS: Final = -32602
_encode = msgspec.json.encode
_decode = msgspec.json.decode


class HostedTools:
    """See the module. `open` comes first; `close` last, whatever happened."""

    def __init__(
        self,
        *,
        toolbox: Toolbox,
        remembered: Sequence[Item],
        input_items: Sequence[Item],
        search: SearchProvider | None,
        mcp: McpConnector | None,
        max_calls: int | None,
        take_approval: Callable[[str], bool],
        waiting_approvals: Collection[str] = (),
        recall: Recall | None = None,
    ) -> None:
        """`take_approval`: uses the approval of a request, by its id; False where it was used before.

        `waiting_approvals`: those on the path that nothing came of yet. `recall`: what fetches items that a compaction
        left out.
        """
        self._path = [*remembered, *input_items]
        self._approvals = find_approvals(remembered, input_items, waiting_approvals)
        self._search = search
        self._search_tool = _find_search(toolbox.hosted) if search is not None else None
        declared = [tool for tool in toolbox.hosted if isinstance(tool, McpTool)] if mcp is not None else []
        self._servers = {tool.server_label: DeclaredServer(tool, mcp) for tool in declared if mcp is not None}
        self._taken = {tool.name for tool in toolbox.offered} | toolbox.hidden
        self._offered: dict[str, OfferedTool] = {}
        #: Servers that have to be asked for their tools; None while that was not looked up.
        self._unlisted: list[DeclaredServer] | None = None
        self._left = max_calls
        self._take_approval = take_approval
        self._recall = recall
        self._has_acted = False
        self._is_open = False
        self._must_stop = False
        self._next_index = 0
        self.warnings: list[tuple[str, str]] = []
        #: The hits of this response's searches, for the annotations of its texts.
        self.citations = CitationFinder()

    @property
    def offered(self) -> tuple[OfferedTool, ...]:
        """What the model may call now, in the order of the declarations: after `open`, all of it."""
        if self.exhausted:
            return ()
        ranks = {label: rank for rank, label in enumerate(self._servers, 1)}
        offered = sorted(self._offered.values(), key=lambda tool: ranks.get(tool.server_label or "", 0))
        return (*offered, self._recall.offered) if self._recall is not None else tuple(offered)

    @property
    def must_stop(self) -> bool:
        """Whether an approval was asked for: the response ends, and the client decides."""
        return self._must_stop

    @property
    def exhausted(self) -> bool:
        """Whether `max_tool_calls` is reached."""
        return self._left == 0

    @property
    def has_acted(self) -> bool:
        """Whether a tool was called that may have changed something: nobody should ask for the same again."""
        return self._has_acted

    @property
    def has_recall(self) -> bool:
        """Whether the model may fetch what a compaction left out."""
        return self._recall is not None

    def add_recall(self, recall: Recall) -> None:
        """From now on it may."""
        self._recall = recall

    def check_approvals(self) -> None:
        """Raise for a call that was approved and cannot be made, since its server is not declared."""
        for granted in self._approvals.granted:
            label = granted.server_label
            if label not in self._servers:
                raise RequestError(
                    f"Missing tool: the approved call of '{granted.name}' goes to MCP server '{label}', which is not "
                    f"among the tools that this request offers. Send its declaration again: {{'type': 'mcp', "
                    f"'server_label': '{label}', 'server_url': ...}}, with a 'tool_choice' that allows it.",
                    param="tools",
                    code="missing_required_parameter",
                )

    def owns(self, name: str) -> bool:
        """Whether a call of this flat name is run here."""
        return name in self._offered or (self._recall is not None and name == RECALL_NAME)

    def offer_known(self) -> bool:
        """Offer what can be offered without asking anybody; whether that is all there is."""
        if self._unlisted is None:
            self._unlisted = []
            self._offer_search()
            for server in self._servers.values():
                listing = find_listing(server.declared, self._path)
                if listing is None:
                    self._unlisted.append(server)
                else:
                    server.learn(listing)
                    self._offer_server(server)
        return not self._unlisted

    async def open(self) -> Batches:
        """List the servers that the path does not tell of, then make the calls that were just approved.

        A second time does nothing: a call that was approved once is made once.
        """
        if self._is_open:
            return
        self._is_open = True
        self.offer_known()
        unlisted = self._unlisted or []
        async with aclosing(self._list_servers(unlisted)) as batches:
            async for batch in batches:
                yield batch
        for server in unlisted:
            self._offer_server(server)
        async with aclosing(self._call_approved()) as batches:
            async for batch in batches:
                yield batch

    async def run(self, name: str, arguments: str) -> Batches:
        """One call of the model's: the events of its item. Beyond `max_calls` there are none, and a warning."""
        if not self.owns(name):
            raise ProtocolError(f"{name} is no tool that this server runs.")
        if self.exhausted:
            self.warnings.append(
                ("hosted_call_dropped", f"max_tool_calls is reached; a call of {name} was dropped.")
            )
            return
        async with aclosing(self._run(self._offered.get(name), arguments)) as batches:
            async for batch in batches:
                yield batch

    async def close(self) -> None:
        """End every session; never raises."""
        await asyncio.gather(*(server.close() for server in self._servers.values()), return_exceptions=True)

    def _run(self, tool: OfferedTool | None, arguments: str) -> Batches:
        if tool is None:
            return self._run_recall(arguments)
        if tool.kind == "web_search":
            return self._run_search(arguments)
        server = self._servers[tool.server_label or ""]
        if needs_approval(server.tools[tool.own_name], server.declared):
            return self._ask_approval(server.label, tool.own_name, arguments)
        return self._call(server.label, tool.own_name, arguments, None)

    def _begin(self, item_type: str) -> "_ItemEvents":
        self._next_index += 1
        return _ItemEvents(self._next_index - 1, item_type)

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1

    # Web search

    def _offer_search(self) -> None:
        tool = self._search_tool
        if tool is None:
            return
        if isinstance(tool, WebSearchTool) and tool.external_web_access is False:
            text = f"external_web_access is false, and this server has no other index; left out: {WEB_SEARCH_NAME}."
            self.warnings.append(("tools_left_out", text))
            return
        if isinstance(tool, WebSearchPreviewTool) and "image" in (tool.search_content_types or ()):
            self.warnings.append(("search_images_left_out", "The web search finds pages, no images."))
        self._offered[WEB_SEARCH_NAME] = OfferedTool(
            name=WEB_SEARCH_NAME,
            kind="web_search",
            function=tell_web_search(tool),
            own_name=WEB_SEARCH_NAME,
        )

    async def _run_search(self, arguments: str) -> Batches:
        self._count()
        query = _read_query(arguments)
        action: dict[str, Any] = {"type": "search", "query": query, "queries": [query] if query else []}
        events = self._begin("web_search_call")
        yield [
            events.open(status="in_progress", action=action),
            events.tell("in_progress"),
            events.tell("searching"),
        ]
        fields: dict[str, Any] = {"status": "completed"}
        try:
            hits = await self._find(query)
        except HostedToolError as error:
            hits = []
            fields = {"status": "failed", "error": error.message}
            self._warn_of_search(query, error)
        self.citations.add(hits)
        action["sources"] = [{"type": "url", "url": hit.url} for hit in hits]
        yield [
            events.tell("completed"),
            events.close(**fields, action=action, results=msgspec.to_builtins(hits)),
        ]

    def _warn_of_search(self, query: str, error: HostedToolError) -> None:
        """Tell the client and, where it was no fault of the model's, whoever runs the server; never the query."""
        text = f"A web search failed, and the model was told so: {error.message}"
        if ("search_failed", text) not in self.warnings:
            self.warnings.append(("search_failed", text))
        if query:
            _log.warning("a web search failed: %s", error.message)

    async def _find(self, query: str) -> list[SearchHit]:
        tool, search = self._search_tool, self._search
        if not query:
            raise HostedToolError(
                "The call has no query: its arguments must be a JSON object with `query`, a text."
            )
        if tool is None or search is None:
            raise ProtocolError("A search was run that was not offered.")
        filters = tool.filters if isinstance(tool, WebSearchTool) else None
        return await search.search(
            SearchQuery(
                text=query,
                count=HIT_COUNTS[tool.search_context_size or "medium"],
                allowed_domains=(filters.allowed_domains if filters else None) or (),
                blocked_domains=(filters.blocked_domains if filters else None) or (),
                country=tool.user_location.country if tool.user_location else None,
            )
        )

    # MCP

    async def _list_servers(self, servers: Sequence[DeclaredServer]) -> Batches:
        gate = asyncio.Semaphore(_LISTED_AT_ONCE)
        tasks = [
            asyncio.create_task(_list_one(server, gate, position)) for position, server in enumerate(servers)
        ]
        try:
            for server, task in zip(servers, tasks, strict=True):
                events = self._begin("mcp_list_tools")
                yield [events.open(server_label=server.label, tools=[]), events.tell("in_progress")]
                yield self._end_listing(events, server, await task)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _end_listing(
        self, events: "_ItemEvents", server: DeclaredServer, listed: list[McpToolFacts] | McpError
    ) -> list[BackendEvent]:
        label = server.label
        if isinstance(listed, McpError):
            self.warnings.append(("mcp_listing_failed", f"{listed.message} Its tools were not offered."))
            return [events.tell("failed"), events.close(server_label=label, tools=[], error=listed.message)]
        allowed = to_plain(server.declared.allowed_tools)
        tools = [_tell_tool(tool) for tool in listed]
        return [
            events.tell("completed"),
            events.close(server_label=label, tools=tools, allowed_tools=allowed),
        ]

    def _offer_server(self, server: DeclaredServer) -> None:
        left_out = []
        for facts in server.tools.values():
            name = flatten_name(server.label, facts.name)
            if name in self._taken or facts.input_schema.get("type", "object") != "object":
                left_out.append(facts.name)
                continue
            self._taken.add(name)
            self._offered[name] = OfferedTool(
                name=name,
                kind="mcp",
                function=tell_mcp_tool(server.declared, facts, name),
                own_name=facts.name,
                server_label=server.label,
            )
        if server.faults:
            told = "; ".join(f"{name}: {fault}" for name, fault in server.faults.items())
            text = f"Tools of MCP server '{server.label}' cannot be offered: {told}."
            self.warnings.append(("tools_left_out", text[:2_000]))
        if left_out:
            why = "their names are taken, or their parameters are no JSON schema of an object"
            text = f"Tools of MCP server '{server.label}' cannot be offered ({why}): {', '.join(left_out)}."
            self.warnings.append(("tools_left_out", text[:2_000]))

    async def _call_approved(self) -> Batches:
        for request_id in self._approvals.ignored:
            self._ignore(request_id, "it was answered before, or is not known")
        for granted in self._approvals.granted:
            if self.exhausted:
                text = f"max_tool_calls is reached; the approved call of {granted.name} was dropped."
                self.warnings.append(("hosted_call_dropped", text))
                continue
            call = self._call(granted.server_label, granted.name, granted.arguments, granted)
            async with aclosing(call) as batches:
                async for batch in batches:
                    yield batch

    def _ignore(self, request_id: str, reason: str) -> str:
        """Say that an approval led to nothing, and give the reason for the model."""
        text = f"The approval of {request_id} was ignored: {reason}."
        self.warnings.append(("approval_ignored", text))
        return f"This call was not made, for its approval was ignored: {reason}."

    async def _ask_approval(self, label: str, name: str, arguments: str) -> Batches:
        self._must_stop = True
        events = self._begin("mcp_approval_request")
        fields = {"server_label": label, "name": name, "arguments": arguments}
        # Stored, not shown: an approval is one for this server, whatever the label stands for later.
        place = cut_query(self._servers[label].declared.server_url or "")
        yield [events.open(**fields), events.close(**fields, server_url=place)]

    async def _call(self, label: str, name: str, arguments: str, granted: Granted | None) -> Batches:
        if granted is None:
            self._count()
        ask = partial(self._ask, label, name, arguments, granted)
        approval = granted.request_id if granted is not None else None
        async with aclosing(self._tell_call(label, name, arguments, ask, approval)) as batches:
            async for batch in batches:
                yield batch

    async def _tell_call(
        self,
        label: str,
        name: str,
        arguments: str,
        ask: Callable[[], Awaitable[_Answer]],
        approval: str | None,
    ) -> Batches:
        """The events of one call, whose output or error `ask` gives."""
        events = self._begin("mcp_call")
        fields: dict[str, Any] = {"server_label": label, "name": name, "approval_request_id": approval}
        opening: list[BackendEvent] = [
            events.open(**fields, arguments="", status="in_progress", output=None, error=None),
            events.tell("in_progress"),
        ]
        if arguments:
            opening.append(events.tell("arguments.delta", delta=arguments))
        yield [*opening, events.tell("arguments.done", arguments=arguments)]
        output, error = await ask()
        fields |= {"arguments": arguments, "output": output, "error": error}
        status = "completed" if error is None else "failed"
        yield [events.tell(status), events.close(**fields, status=status)]

    async def _ask(self, label: str, name: str, arguments: str, granted: Granted | None) -> _Answer:
        """The output of a call, or its typed error."""
        server = self._servers.get(label)
        if server is None:
            return None, _protocol_error(f"MCP server '{label}' is not among the tools of this request.")
        if granted is not None and not granted.is_for(server.declared.server_url or ""):
            reason = f"it was given for another server_url than that of '{label}' now"
            return None, _protocol_error(self._ignore(granted.request_id, reason))
        known = server.tools.get(name) or McpToolFacts(name, {})
        if (server.tools and name not in server.tools) or not is_allowed(
            known, server.declared.allowed_tools
        ):
            return None, _protocol_error(f"MCP server '{label}' has no tool '{name}' that is allowed here.")
        try:
            given = _decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return None, _protocol_error("The arguments are no JSON object.")
        try:
            await server.open()
            # Nothing may come between this and the call: an approval is used once.
            if granted is not None and not self._take_approval(granted.request_id):
                reason = "it was used before, and a call is made once for each approval"
                return None, _protocol_error(self._ignore(granted.request_id, reason))
            if granted is not None:
                self._count()
            self._has_acted = True
            result = await server.call(name, given)
        except McpError as error:
            return None, {"type": error.kind, "code": error.error_code, "message": error.message}
        return _read_result(result)

    # Recall

    def _run_recall(self, arguments: str) -> Batches:
        self._count()
        ask = partial(self._recall_items, arguments)
        return self._tell_call(RECALL_SERVER, RECALL_TOOL, arguments, ask, None)

    async def _recall_items(self, arguments: str) -> _Answer:
        if self._recall is None:
            raise ProtocolError(f"{RECALL_NAME} was run and was not offered.")
        try:
            return await self._recall.answer(arguments), None
        except RecallError as error:
            return None, tell_failure(error)


class _ItemEvents:
    """The events of one item."""

    def __init__(self, index: int, item_type: str) -> None:
        self._index = index
        self._type = item_type

    def open(self, **fields: Any) -> ItemOpened:
        """The item begins with these fields."""
        return ItemOpened(self._index, _encode({"type": self._type, **fields}))

    def tell(self, name: str, **fields: Any) -> ItemEvent:
        """An event: `completed` -> `response.mcp_call.completed`, `arguments.done` -> `..._arguments.done`."""
        joint = "_" if "." in name else "."
        return ItemEvent(self._index, f"response.{self._type}{joint}{name}", fields)

    def close(self, **fields: Any) -> ItemClosed:
        """The item is done with these fields."""
        return ItemClosed(self._index, _encode({"type": self._type, **fields}))


def _find_search(hosted: Sequence[Tool]) -> WebSearch | None:
    return next((tool for tool in hosted if isinstance(tool, WEB_SEARCHES)), None)


async def _list_one(
    server: DeclaredServer, gate: asyncio.Semaphore, position: int
) -> list[McpToolFacts] | McpError:
    if position >= MAX_SERVERS:
        return McpError(f"At most {MAX_SERVERS} MCP servers are asked for one response.", error_code=400)
    async with gate:
        try:
            return await server.list_tools()
        except McpError as error:
            return error


def _tell_tool(tool: McpToolFacts) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "annotations": tool.annotations,
    }


def _read_query(arguments: str) -> str:
    try:
        given = _decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return ""
    query = given.get("query") if isinstance(given, dict) else None
    return query.strip() if isinstance(query, str) else ""


def _read_result(result: McpResult) -> tuple[str | None, dict[str, Any] | None]:
    if not result.is_error:
        return result.text, None
    return None, {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result.text}]}


def _protocol_error(message: str) -> dict[str, Any]:
    return {"type": "mcp_protocol_error", "code": _INVALID_ARGUMENTS, "message": message}
