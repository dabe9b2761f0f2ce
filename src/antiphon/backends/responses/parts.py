"""One part of an item (text, refusal, reasoning) as its pieces arrive.

It knows no order of events. Invariant: `text` is the sum of the deltas.
"""

from typing import Any, Final

from msgspec import Raw

from antiphon.backends.responses.item_forms import fill_part, get_text_key
from antiphon.backends.responses.json_fields import Fields, read_list, read_object, read_text, to_raw

#: Event -> where the parts stand that it is about.
PART_EVENTS: Final = {
    "response.content_part.added": "content",
    "response.content_part.done": "content",
    "response.output_text.delta": "content",
    "response.output_text.done": "content",
    "response.output_text.annotation.added": "content",
    "response.refusal.delta": "content",
    "response.refusal.done": "content",
    "response.reasoning_text.delta": "content",
    "response.reasoning_text.done": "content",
    "response.reasoning_summary_part.added": "summary",
    "response.reasoning_summary_part.done": "summary",
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_summary_text.done": "summary",
    "response.shell_call_command.added": "commands",
    "response.shell_call_command.delta": "commands",
    "response.shell_call_command.done": "commands",
}
#: (type of item, place) -> the kinds of parts that have events; the first is what an unnamed part is.
_KINDS: Final = {
    ("message", "content"): ("output_text", "refusal"),
    ("reasoning", "content"): ("reasoning_text",),
    ("reasoning", "summary"): ("summary_text",),
    ("shell_call", "commands"): ("command",),
}
_KIND_DELTAS: Final = {
    "output_text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "reasoning_text": "response.reasoning_text.delta",
    "summary_text": "response.reasoning_summary_text.delta",
    "command": "response.shell_call_command.delta",
}
#: The events that bring text.
DELTA_NAMES: Final = frozenset(_KIND_DELTAS.values())
#: The events that say that the text of a part is whole.
TEXT_ENDS: Final = frozenset(name.removesuffix(".delta") + ".done" for name in DELTA_NAMES)
_INDEX_NAMES: Final = {"content": "content_index", "summary": "summary_index", "commands": "command_index"}


def find_kind(item_type: str, place: str, told: str | None, *, wanted: str = "") -> str | None:
    """The kind of a part; None for one whose kind has no events.

    `wanted`: the event that the part is begun for, where the server did not begin it.
    """
    kinds = _KINDS.get((item_type, place), ())
    if wanted.startswith("response.refusal."):
        return "refusal"
    if told is None:
        return kinds[0] if kinds else None
    return told if told in kinds else None


class Part:
    """A part; `told` is its index as the server counts, `position` as it stands in the item."""

    __slots__ = (
        "_logprobs",
        "_pieces",
        "_text",
        "annotations",
        "is_done",
        "is_whole",
        "kind",
        "place",
        "position",
        "told",
    )

    def __init__(self, kind: str, place: str, position: int, told: int | None) -> None:
        self.kind = kind
        self.place = place
        self.position = position
        self.told = told
        self.is_done = False
        #: Its text was called whole.
        self.is_whole = False
        self.annotations: list[Any] = []
        self._text = ""
        self._pieces: list[str] = []
        self._logprobs: list[Raw] = []

    @property
    def text(self) -> str:
        """What has come so far."""
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces.clear()
        return self._text

    @property
    def takes_text(self) -> bool:
        """Whether a delta may still come."""
        return not self.is_whole and not self.is_done and self.kind in _KIND_DELTAS

    @property
    def delta_name(self) -> str:
        """The event of a piece of it."""
        return _KIND_DELTAS[self.kind]

    @property
    def index_name(self) -> str:
        """The field that counts it."""
        return _INDEX_NAMES[self.place]

    def become(self, event: str) -> None:
        """Take the kind that an event is about, while no text says otherwise."""
        if self.kind not in ("output_text", "refusal"):
            return
        kind = "refusal" if event.startswith("response.refusal.") else "output_text"
        if kind != self.kind and not self.text:
            self.kind = kind

    def add(self, text: str, logprobs: Raw | None) -> None:
        """One more piece."""
        self._pieces.append(text)
        self._logprobs += read_list(logprobs)

    def render_logprobs(self) -> Raw:
        """All log probabilities that came with the pieces."""
        return to_raw(self._logprobs)

    def render_start(self, sent: Raw | None) -> Raw:
        """The part as it is shown when it begins."""
        return to_raw(fill_part(sent, self.kind))

    def render(self, sent: Raw | None) -> Raw:
        """The finished part: the server's own bytes where they say what was sent."""
        if not self.kind:
            return sent if sent is not None else to_raw({})
        filled: Fields = fill_part(sent, self.kind)
        key = get_text_key(self.kind)
        if sent is None:
            if self.kind == "output_text":
                filled |= {"annotations": to_raw(self.annotations), "logprobs": self.render_logprobs()}
            return to_raw({**filled, key: to_raw(self.text)})
        if read_text(filled.get(key)) != self.text:
            filled[key] = to_raw(self.text)
        return sent if filled == read_object(sent) else to_raw(filled)
