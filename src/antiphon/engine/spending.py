"""What the generations of one response cost together.

It knows numbers alone. Invariant: nothing that a server did not tell is made up; what cannot be summed is None.
"""

from antiphon.backends import BackendUsage


class Spending:
    """Adds up usage, and keeps the counts of the first prompt and of the last."""

    __slots__ = (
        "_generations",
        "_has_answered",
        "_told",
        "asks_again",
        "first_prompt_tokens",
        "last_prompt_tokens",
    )

    def __init__(self) -> None:
        self._generations = 0
        self._has_answered = False
        self._told: list[BackendUsage] = []
        #: The running generation's prompt holds more than the window, so its count says nothing of the window.
        self.asks_again = False
        self.first_prompt_tokens: int | None = None
        self.last_prompt_tokens: int | None = None

    def add(self, usage: BackendUsage | None) -> None:
        """One generation more."""
        self._generations += 1
        if usage is not None:
            self._told.append(usage)
        is_first, self._has_answered = not self._has_answered, True
        if self.asks_again:
            return
        told = usage.input_tokens if usage is not None else None
        if is_first:
            self.first_prompt_tokens = told
        self.last_prompt_tokens = told

    def add_aside(self, usage: BackendUsage | None) -> None:
        """What was spent on something else than the answer: it counts in the sum alone."""
        self._generations += 1
        if usage is not None:
            self._told.append(usage)

    @property
    def total(self) -> BackendUsage | None:
        """The sum of all that was told; None where nothing was."""
        if len(self._told) == 1:
            return self._told[0]
        if not self._told:
            return None
        return BackendUsage(
            input_tokens=sum(usage.input_tokens for usage in self._told),
            output_tokens=sum(usage.output_tokens for usage in self._told),
            cached_tokens=_sum([usage.cached_tokens for usage in self._told]),
            cache_write_tokens=_sum([usage.cache_write_tokens for usage in self._told]),
            reasoning_tokens=_sum([usage.reasoning_tokens for usage in self._told]),
        )

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """What must be said of the sum."""
        if not self._told or len(self._told) == self._generations:
            return []
        text = (
            f"The model was asked {self._generations} times for this response; "
            f"usage counts the {len(self._told)} of them whose tokens were told."
        )
        return [("usage_partial", text)]


def _sum(told: list[int | None]) -> int | None:
    known = [count for count in told if count is not None]
    return sum(known) if len(known) == len(told) else None
