"""Calls and their outputs along a path: who is still owed an answer, and what does not fit.

Pure bookkeeping over ids. Invariant: after `check_pairing` returns, every output in the items has its
call on the path and no call is left open.
"""

from collections.abc import Callable, Iterable

from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, get_call_id, get_item_id, is_call, is_call_output

_REMEDY = "Remove duplicate items from your input and try again."


def check_pairing(
    items: Iterable[Item],
    *,
    open_calls: frozenset[str] = frozenset(),
    is_earlier_call: Callable[[str], bool] = lambda _: False,
    is_earlier_item: Callable[[str], bool] = lambda _: False,
) -> None:
    """Refuse new items that do not pair up with the path that they continue.

    `open_calls` are the path's unanswered calls; the callables tell whether a call id or item id stands on
    the path at all. Raises `RequestError` (responses-API section 'State errors').
    """
    still_open = dict.fromkeys(open_calls)
    calls: set[str] = set()
    ids: set[str] = set()
    for item in items:
        item_id = get_item_id(item)
        if item_id is not None:
            if item_id in ids or is_earlier_item(item_id):
                raise _refuse(f"Duplicate item found with id {item_id}. {_REMEDY}")
            ids.add(item_id)
        call_id = get_call_id(item)
        if call_id is None:
            continue
        if is_call(item):
            if call_id in calls or is_earlier_call(call_id):
                raise _refuse(f"Duplicate call found with call_id {call_id}. {_REMEDY}")
            calls.add(call_id)
            still_open[call_id] = None
        elif is_call_output(item):
            if call_id in still_open:
                del still_open[call_id]
            elif call_id in calls or is_earlier_call(call_id):
                raise _refuse(f"Function call {call_id} has its output already. {_REMEDY}")
            else:
                raise _refuse(f"No tool call found for function call output with call_id {call_id}.")
    for call_id in still_open:
        raise _refuse(f"No tool output found for function call {call_id}.")


def _refuse(message: str) -> RequestError:
    return RequestError(message, param="input")
