"""Splits `<think>...</think>` at the head of a text stream into reasoning and text.

Only a tag that opens the answer counts; one inside the text is text. Nothing is lost: what is held
back while a tag may still be coming is returned by `close()`.
"""

from typing import Any

from antiphon.backends.interface import BackendEvent, ReasoningDelta, TextDelta

_OPEN = "<think>"
_CLOSE = "</think>"

LogProbs = list[dict[str, Any]] | None


class ThinkSplitter:
    """A small state machine: undecided -> opened -> thinking -> gap -> passing."""

    def __init__(self) -> None:
        #: Once true, text passes unchanged and `feed` need not be called any more.
        self.passing = False
        self._state = "undecided"
        self._held = ""
        #: Blanks before anything else; not looked through again with each piece.
        self._blanks: list[str] = []
        self._held_logprobs: list[dict[str, Any]] = []

    def feed(self, text: str, logprobs: LogProbs = None) -> list[BackendEvent]:
        """Events for a piece of content; log probabilities stay with visible text only."""
        self._held += text
        if logprobs:
            self._held_logprobs.extend(logprobs)
        events: list[BackendEvent] = []
        if self._state == "undecided":
            self._decide(events)
        if self._state == "opened":
            self._begin_thinking()
        if self._state == "thinking":
            self._think(events)
        if self._state == "gap":
            self._leave_gap(events)
        return events

    def close(self) -> list[BackendEvent]:
        """What is still held back, as what it turned out to be."""
        held, self._held = "".join([*self._blanks, self._held]), ""
        self._blanks.clear()
        if not held or self._state in ("opened", "gap"):
            return []
        if self._state == "thinking":
            return [ReasoningDelta(held)]
        return [TextDelta(held, self._take_logprobs())]

    def _decide(self, events: list[BackendEvent]) -> None:
        start = self._held.lstrip()
        if not start:
            self._blanks.append(self._held)
            self._held = ""
        elif start.startswith(_OPEN):
            self._state = "opened"
            self._held = start[len(_OPEN) :]
            self._blanks.clear()
            self._held_logprobs.clear()
        elif not _OPEN.startswith(start):
            self.passing = True
            self._state = "passing"
            events.append(TextDelta("".join([*self._blanks, self._held]), self._take_logprobs()))
            self._blanks.clear()
            self._held = ""

    def _begin_thinking(self) -> None:
        # The line break behind the tag is the template's; a model told not to think writes nothing else.
        self._held = self._held.lstrip()
        if self._held:
            self._state = "thinking"

    def _think(self, events: list[BackendEvent]) -> None:
        self._held_logprobs.clear()
        end = self._held.find(_CLOSE)
        if end >= 0:
            if end:
                events.append(ReasoningDelta(self._held[:end]))
            self._held = self._held[end + len(_CLOSE) :]
            self._state = "gap"
            return
        keep = _partial_suffix(self._held, _CLOSE)
        ready = self._held[: len(self._held) - keep]
        if ready:
            events.append(ReasoningDelta(ready))
            self._held = self._held[len(ready) :]

    def _leave_gap(self, events: list[BackendEvent]) -> None:
        # Models put blank lines between their thoughts and the answer; they belong to neither.
        text = self._held.lstrip()
        if not text:
            self._held = ""
            self._held_logprobs.clear()
            return
        self._held = ""
        self.passing = True
        self._state = "passing"
        events.append(TextDelta(text, self._take_logprobs()))

    def _take_logprobs(self) -> LogProbs:
        taken, self._held_logprobs = self._held_logprobs, []
        return taken or None


def _partial_suffix(text: str, tag: str) -> int:
    """How many characters at the end of `text` may be the beginning of `tag`."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0
