"""Counts the compactions of each conversation that came to nothing: after some in a row none is made unasked.

It knows conversations by a name of some bytes. Invariant: memory is bounded, and a pass that helped forgets the rest.
"""

from collections import OrderedDict
from typing import Final

#: After so many passes in a row that came to nothing, none is made unasked in the same conversation.
FAILURES_AT_MOST: Final = 3
#: Conversations whose failures are remembered.
CONVERSATIONS_KEPT: Final = 4_096


class PassBreaker:
    """The failures, in memory alone."""

    def __init__(self) -> None:
        self._failures: OrderedDict[bytes, int] = OrderedDict()

    def is_open(self, conversation: bytes) -> bool:
        """Whether no pass is made unasked any more."""
        return self._failures.get(conversation, 0) >= FAILURES_AT_MOST

    def note(self, conversation: bytes, *, succeeded: bool) -> None:
        """A pass has ended."""
        failures = self._failures.pop(conversation, 0)
        if succeeded:
            return
        self._failures[conversation] = failures + 1
        while len(self._failures) > CONVERSATIONS_KEPT:
            self._failures.popitem(last=False)
