"""What a request says of an MCP server's tools: which are allowed, which need approval, which listing still holds.

Pure decisions over items and tool declarations. Invariant: a call goes without approval only where the request says
so for that very tool.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from antiphon.hosted import McpToolFacts
from antiphon.protocol.items import (
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
)
from antiphon.protocol.mcp_addresses import name_place
from antiphon.protocol.tools import McpApprovalRules, McpTool, McpToolFilter

Allowed: TypeAlias = list[str] | McpToolFilter | None


class _Listing(msgspec.Struct):
    """The key of a stored listing that clients are not shown: for which `allowed_tools` it was made."""

    allowed_tools: Any = msgspec.UNSET


_decode_listing = msgspec.json.Decoder(_Listing).decode


class _Asked(msgspec.Struct):
    """The key of a stored request for approval that clients are not shown: which server it is about."""

    server_url: Any = None


_decode_asked = msgspec.json.Decoder(_Asked).decode


class Granted(msgspec.Struct, frozen=True):
    """A call that was approved. `place` is the server that it was approved for, where the request tells."""

    request_id: str
    server_label: str
    name: str
    arguments: str
    place: str | None

    def is_for(self, url: str) -> bool:
        """Whether the approval is one for the server behind this URL."""
        return self.place is None or self.place == name_place(url)


class Approvals(msgspec.Struct):
    """What a request approves: calls to make, and ids that lead to none."""

    granted: list[Granted]
    ignored: list[str]


def is_allowed(tool: McpToolFacts, allowed: Allowed) -> bool:
    """Whether `allowed_tools` lets the model see this tool."""
    return bool(keep_allowed([tool], allowed))


def keep_allowed(tools: Sequence[McpToolFacts], allowed: Allowed) -> list[McpToolFacts]:
    """The tools that `allowed_tools` lets the model see. Both lists may be long, so neither is walked for the other."""
    if allowed is None:
        return list(tools)
    rule = allowed if isinstance(allowed, McpToolFilter) else McpToolFilter(tool_names=allowed)
    names = None if rule.tool_names is None else frozenset(rule.tool_names)
    return [tool for tool in tools if (names is None or tool.name in names) and _has_hint(tool, rule)]


def needs_approval(tool: McpToolFacts, declared: McpTool) -> bool:
    """Whether a call of this tool waits for the client; `always` outranks `never`, and neither means it does."""
    rules = declared.require_approval
    if isinstance(rules, McpApprovalRules):
        if _names(rules.always) and _fits(tool, rules.always):
            return True
        return not (_names(rules.never) and _fits(tool, rules.never))
    return rules != "never"


def _names(rule: McpToolFilter | None) -> bool:
    """Whether a filter says anything; an empty one names no tool."""
    return rule is not None and (rule.tool_names is not None or rule.read_only is not None)


def _fits(tool: McpToolFacts, rule: McpToolFilter | None) -> bool:
    if rule is None:
        return False
    if rule.tool_names is not None and tool.name not in rule.tool_names:
        return False
    return _has_hint(tool, rule)


def _has_hint(tool: McpToolFacts, rule: McpToolFilter) -> bool:
    reads_only = (tool.annotations or {}).get("readOnlyHint") is True
    return rule.read_only is None or reads_only == rule.read_only


def find_listing(declared: McpTool, items: Iterable[Item]) -> list[McpToolFacts] | None:
    """The tools that the newest listing of this server on the path tells; None where it must be listed anew."""
    found: list[McpToolFacts] | None = None
    for item in items:
        value = item.value
        if not isinstance(value, McpListTools) or value.server_label != declared.server_label:
            continue
        tools = [_to_facts(tool) for tool in value.tools]
        holds = value.error is None and _covers(item.raw, tools, declared.allowed_tools)
        found = keep_allowed(tools, declared.allowed_tools) if holds else None
    return found


def _covers(raw: bytes, tools: Sequence[McpToolFacts], wanted: Allowed) -> bool:
    """Whether a listing has all that is wanted: it was made for the same, for everything, or names it all."""
    made_for = _decode_listing(raw).allowed_tools
    if made_for is msgspec.UNSET or made_for is None or made_for == to_plain(wanted):
        # Without the key it came from the client itself, who keeps its own history.
        return True
    names = wanted.tool_names if isinstance(wanted, McpToolFilter) else wanted
    return names is not None and {tool.name for tool in tools}.issuperset(names)


def to_plain(allowed: Allowed) -> Any:
    """`allowed_tools` as JSON has it."""
    return msgspec.to_builtins(allowed)


def _to_facts(tool: Any) -> McpToolFacts:
    schema = tool.input_schema if isinstance(tool.input_schema, dict) else {}
    annotations = tool.annotations if isinstance(tool.annotations, dict) else None
    return McpToolFacts(tool.name, schema, tool.description, annotations)


def find_approvals(
    remembered: Iterable[Item], input_items: Sequence[Item], waiting: Collection[str] = ()
) -> Approvals:
    """What the request's approval responses lead to; a request that was answered before leads to nothing again.

    `waiting`: requests whose responses stand on the path, and nothing came of them yet.
    """
    path = list(remembered)
    requests = _list_requests([*path, *input_items])
    answered = {
        item.value.approval_request_id
        for item in (*path, *(item for item in input_items if isinstance(item.value, McpCall)))
        if isinstance(item.value, McpApprovalResponse | McpCall) and item.value.approval_request_id
    } - set(waiting)
    approvals = Approvals([], [])
    called = {item.value.approval_request_id for item in input_items if isinstance(item.value, McpCall)}
    new = [item for item in path if _get_approved(item) in waiting] if waiting else []
    for item in (*new, *input_items):
        value = item.value
        if not isinstance(value, McpApprovalResponse):
            continue
        request_id = value.approval_request_id
        if request_id in called:
            # The client replays its own history: the call that followed stands in it.
            continue
        if request_id in answered or request_id not in requests:
            approvals.ignored.append(request_id)
        elif value.approve:
            approvals.granted.append(requests[request_id])
        answered.add(request_id)
    return approvals


def _get_approved(item: Item) -> str | None:
    return item.value.approval_request_id if isinstance(item.value, McpApprovalResponse) else None


def _list_requests(items: Iterable[Item]) -> dict[str, Granted]:
    requests: dict[str, Granted] = {}
    for item in items:
        value = item.value
        if isinstance(value, McpApprovalRequest) and value.id is not None:
            url = _decode_asked(item.raw).server_url
            place = name_place(url) if isinstance(url, str) else None
            requests[value.id] = Granted(value.id, value.server_label, value.name, value.arguments, place)
    return requests
