"""Which approvals have led to a call already, on whatever branch of a conversation.

It knows ids alone and is kept in memory: after a restart, what stands on a path is all that is known. Invariant: of
the last `limit` approvals none is taken twice.
"""

from collections import OrderedDict
from typing import Final

#: Some ten megabytes.
APPROVALS_AT_MOST: Final = 100_000


class UsedApprovals:
    """The approvals of one server, for all tenants."""

    def __init__(self, limit: int = APPROVALS_AT_MOST) -> None:
        self._limit = limit
        self._used: OrderedDict[tuple[str, str], None] = OrderedDict()

    def take(self, tenant: str, request_id: str) -> bool:
        """Use an approval; False where it was used before."""
        key = (tenant, request_id)
        if key in self._used:
            return False
        self._used[key] = None
        if len(self._used) > self._limit:
            self._used.popitem(last=False)
        return True
