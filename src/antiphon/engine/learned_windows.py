"""Windows that model servers told only by refusing a prompt: remembered for a while, for one model each.

It knows no requests. Invariant: what was learned is forgotten after a while, and as soon as the server tells another
window itself or takes a longer prompt; what is remembered is bounded.
"""

import time
from collections import OrderedDict
from typing import Final, NamedTuple

#: A server may be started again with another window, and not tell.
LIFETIME_S: Final = 600.0
MODELS_KEPT: Final = 64


class _Learned(NamedTuple):
    tokens: int
    #: What the server told of its window when this was learned.
    told: int | None
    until: float


class LearnedWindows:
    """By endpoint and model."""

    def __init__(self) -> None:
        self._learned: OrderedDict[tuple[str, str], _Learned] = OrderedDict()

    def learn(self, endpoint: str, model: str, tokens: int, *, told: int | None) -> None:
        """A prompt was refused, and the window holds this much; `told`: what the server says of it elsewhere."""
        key = endpoint, model
        self._learned[key] = _Learned(tokens, told, time.monotonic() + LIFETIME_S)
        self._learned.move_to_end(key)
        while len(self._learned) > MODELS_KEPT:
            self._learned.popitem(last=False)

    def find(self, endpoint: str, model: str, *, told: int | None) -> int | None:
        """What was learned; None where nothing was, or where it does not hold any more."""
        learned = self._learned.get((endpoint, model))
        if learned is None:
            return None
        if learned.told != told or time.monotonic() > learned.until:
            self.forget(endpoint, model)
            return None
        return learned.tokens

    def forget(self, endpoint: str, model: str) -> None:
        """It holds more than was thought."""
        self._learned.pop((endpoint, model), None)
