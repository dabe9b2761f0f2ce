"""Calls and their outputs along a path: who is still owed an answer, and what does not fit.

Pure bookkeeping over ids. Invariant: after `check_pairing` returns, every output in the items has its
call on the path, every approval its request, and no call is left open but those that may be answered late.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from antiphon.protocol.errors import RequestError, shorten_quoted
from antiphon.protocol.items import (
    CALL_OUTPUT_TYPES,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    get_call_id,
    get_item_id,
    is_call,
    is_call_output,
)

_REMEDY = "Remove duplicate items from your input and try again."
_CALL_TYPES = {output: call for call, output in CALL_OUTPUT_TYPES.items()}


def check_pairing(
    items: Iterable[Item],
    *,
    open_calls: Collection[str] = (),
    async_calls: Collection[str] = (),
    approvals: Mapping[str, bool] | None = None,
    call_types: Mapping[str, str] | None = None,
    is_earlier_call: Callable[[str], bool] = lambda _: False,
    is_earlier_item: Callable[[str], bool] = lambda _: False,
    may_be_open: bool = False,
) -> None:
    """Refuse new items that do not pair up with the path that they continue.

    `open_calls` are the path's unanswered calls, `async_calls` those that may be answered late, again, or never;
    `call_types` tells the item types of open calls that are not of functions. `approvals` are its approval
    requests (`list_approvals`). The callables tell whether a call id or item id stands on the path at all.
    `may_be_open`: the model is not asked to go on, so that calls may wait for their outputs still.
    Raises `RequestError` (responses-API section 'State errors').
    """
    check = _Check(open_calls, async_calls, approvals or {}, call_types or {}, is_earlier_call)
    ids: set[str] = set()
    for item in items:
        item_id = get_item_id(item)
        if item_id is not None:
            if item_id in ids or is_earlier_item(item_id):
                raise _refuse(f"Duplicate item found with id {item_id}. {_REMEDY}")
            ids.add(item_id)
        check.take(item)
    if not may_be_open:
        check.finish()


def check_order(earlier: Iterable[Item], items: Iterable[Item]) -> None:
    """Refuse items that are added to a conversation where no later response could send them on as they stand.

    Each call stands once, and each output once and behind its call; a call may be answered later, and an output may
    stand alone. `earlier`: what the path holds of the same call ids. Raises `RequestError`.
    """
    calls: dict[str, bool] = {}
    answered: set[str] = set()
    for item in earlier:
        call_id = get_call_id(item)
        if call_id is not None and is_call(item):
            calls[call_id] = bool(getattr(item.value, "is_async", None))
        elif call_id is not None and is_call_output(item):
            answered.add(call_id)
    for position, item in enumerate(items):
        call_id = get_call_id(item)
        where = f"items[{position}]"
        if call_id is None:
            continue
        if is_call(item):
            if call_id in calls:
                raise _refuse(
                    f"Duplicate call found with call_id {shorten_quoted(call_id)}. {_REMEDY}", where
                )
            if call_id in answered:
                raise _refuse(
                    f"The output of call {shorten_quoted(call_id)} stands before it. Add the call first.",
                    where,
                )
            calls[call_id] = bool(getattr(item.value, "is_async", None))
        elif is_call_output(item):
            if call_id in answered and not calls.get(call_id):
                raise _refuse(f"The call {shorten_quoted(call_id)} has its output already. {_REMEDY}", where)
            answered.add(call_id)


def list_approvals(items: Iterable[Item]) -> dict[str, bool]:
    """The approval requests among some items: id -> whether it has its answer."""
    found: dict[str, bool] = {}
    for item in items:
        if isinstance(item.value, McpApprovalRequest) and item.value.id is not None:
            found.setdefault(item.value.id, False)
        elif isinstance(item.value, McpApprovalResponse):
            found[item.value.approval_request_id] = True
    return found


class _Check:
    """The calls of a path while its new items are walked."""

    def __init__(
        self,
        open_calls: Collection[str],
        async_calls: Collection[str],
        approvals: Mapping[str, bool],
        call_types: Mapping[str, str],
        is_earlier_call: Callable[[str], bool],
    ) -> None:
        self._open = {call_id: call_types.get(call_id, "function_call") for call_id in open_calls}
        self._async = set(async_calls)
        self._approvals = dict(approvals)
        self._is_earlier_call = is_earlier_call
        self._calls: set[str] = set()

    def take(self, item: Item) -> None:
        """One more item."""
        value = item.value
        if isinstance(value, McpApprovalRequest) and value.id is not None:
            self._approvals.setdefault(value.id, False)
        elif isinstance(value, McpApprovalResponse):
            self._take_approval(value.approval_request_id)
        call_id = get_call_id(item)
        if call_id is None:
            return
        if is_call(item):
            self._take_call(item, call_id)
        elif is_call_output(item):
            self._take_output(item, call_id)

    def _take_call(self, item: Item, call_id: str) -> None:
        if call_id in self._calls or self._is_earlier_call(call_id):
            raise _refuse(f"Duplicate call found with call_id {shorten_quoted(call_id)}. {_REMEDY}")
        self._calls.add(call_id)
        if getattr(item.value, "is_async", None):
            self._async.add(call_id)
        else:
            self._open[call_id] = item.type

    def _take_output(self, item: Item, call_id: str) -> None:
        if call_id in self._async:
            return
        kind = _name_type(_CALL_TYPES[item.type])
        if call_id in self._open:
            if self._open[call_id] != _CALL_TYPES[item.type]:
                raise _refuse(
                    f"The output of {_name_type(self._open[call_id])} {shorten_quoted(call_id)} must be an item "
                    f"of type '{CALL_OUTPUT_TYPES.get(self._open[call_id])}', not '{item.type}'."
                )
            del self._open[call_id]
        elif call_id in self._calls or self._is_earlier_call(call_id):
            raise _refuse(f"{kind.capitalize()} {shorten_quoted(call_id)} has its output already. {_REMEDY}")
        else:
            raise _refuse(f"No tool call found for {kind} output with call_id {shorten_quoted(call_id)}.")

    def _take_approval(self, request_id: str) -> None:
        is_answered = self._approvals.get(request_id)
        if is_answered is None:
            raise _refuse(
                "No approval request found for MCP approval response with approval_request_id "
                f"{shorten_quoted(request_id)}."
            )
        if is_answered:
            raise _refuse(
                f"MCP approval request {shorten_quoted(request_id)} has its response already. {_REMEDY}"
            )
        self._approvals[request_id] = True

    def finish(self) -> None:
        """Nothing comes any more: is a call left open?"""
        for call_id, item_type in self._open.items():
            if call_id not in self._async:
                raise _refuse(f"No tool output found for {_name_type(item_type)} {shorten_quoted(call_id)}.")


def _name_type(item_type: str) -> str:
    """The words for a type of call: `custom_tool_call` -> `custom tool call`."""
    return item_type.replace("_", " ")


def _refuse(message: str, param: str = "input") -> RequestError:
    return RequestError(message, param=param)
