"""The `include` of a query: what of an item is shown that is left out otherwise."""

from typing import get_args

from antiphon.protocol.checks import invalid_value
from antiphon.protocol.requests import Includable
from antiphon.server.route import Call, Query

_SUPPORTED: tuple[str, ...] = get_args(Includable)
INCLUDE = Query(
    "include", {"type": "array", "items": {"type": "string", "enum": list(_SUPPORTED)}}, repeated=True
)


def read_include(call: Call) -> tuple[str, ...]:
    """The members; raises for one that the API does not have."""
    names = call.list_query("include")
    for position, name in enumerate(names):
        if name not in _SUPPORTED:
            raise invalid_value(f"include[{position}]", name, _SUPPORTED)
    return names
