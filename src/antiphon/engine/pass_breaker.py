"""Counts the compactions of each conversation that came to nothing: after some in a row none is made unasked.

It knows conversations by a name of some bytes. Invariant: memory is bounded; a pass that helped forgets the rest, and
a window that has grown since is tried again.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

#: After so many passes in a row that came to nothing, none is made unasked in the same conversation,
FAILURES_AT_MOST: Final = 3
#: until its prompt has grown by this share.
GROWTH_SHARE: Final = 0.12
#: Conversations whose failures are remembered.
CONVERSATIONS_KEPT: Final = 4_096


class _Failures(NamedTuple):
    times: int
    #: The tokens of the prompt at the last of them.
    tokens: int


class PassBreaker:
    """The failures, in memory alone."""

    def __init__(self) -> None:
        self._failures: OrderedDict[bytes, _Failures] = OrderedDict()

    def is_open(self, conversation: bytes, tokens: int) -> bool:
        """Whether no pass is made unasked over a prompt of so many tokens."""
        failures = self._failures.get(conversation)
        if failures is None or failures.times < FAILURES_AT_MOST:
            return False
        return abs(tokens - failures.tokens) < failures.tokens * GROWTH_SHARE

    def note(self, conversation: bytes, tokens: int, *, succeeded: bool) -> None:
        """A pass has ended."""
        failures = self._failures.pop(conversation, _Failures(0, 0))
        if succeeded:
            return
        self._failures[conversation] = _Failures(failures.times + 1, tokens)
        while len(self._failures) > CONVERSATIONS_KEPT:
            self._failures.popitem(last=False)
