"""The part of the honest double that compacts: on a trigger, on its own route, and past a threshold.

It has no summary: the user's messages stay, and a digest tells the words of everything else. Invariant: each method
under "seams" is one thing that a server can get wrong.
"""

from collections.abc import Iterator
from typing import Any

from antiphon.checker.doubles import rules
from antiphon.checker.doubles.conversing import ConversingDouble
from antiphon.checker.doubles.rules import COMPACTIONS, TRIGGER, Item, is_triggered
from antiphon.checker.doubles.sealing import Sealed, open_seal, seal
from antiphon.checker.doubles.toy import count_item, find_words
from antiphon.protocol.errors import RequestError

#: What /responses/compact takes.
_TAKEN = (
    *("model", "input", "previous_response_id", "instructions", "prompt_cache_key"),
    *("prompt_cache_retention", "prompt_cache_options", "service_tier"),
)


class CompactingDouble(ConversingDouble):
    """Compacts, and opens what it has sealed."""

    #: Whose request is being answered.
    tenant = ""

    # The seams.

    def open_item(self, item: Item) -> Sealed:
        """What a compaction item holds; refuses what is not this key's."""
        sealed = open_seal(item.get("encrypted_content"))
        if sealed is None or sealed.tenant != self.tenant:
            raise rules.find_seal_broken(item)
        return sealed

    def supersede(self, shown: list[Item], sealed: Sealed) -> list[Item]:
        """What still stands before an opened item."""
        return [] if sealed.closes else shown

    def keep_items(self, window: list[Item], *, closes: bool) -> list[Item]:
        """What of a window goes on: the user's messages, and a digest of everything else."""
        words = find_words([item for item in window if item.get("role") not in ("user", "assistant")])
        told = f"It was told before: {' '.join(f'the word is {word},' for word in words)} and much more."
        digest = {"type": "message", "role": "developer", "content": told}
        kept = [item for item in window if item.get("role") == "user"] if closes else []
        return [digest, *kept]

    def make_compaction(self, window: list[Item], *, closes: bool = True) -> Item:
        """The item that stands for a window."""
        sealed = Sealed(self.tenant, closes, self.keep_items(window, closes=closes))
        return {"type": "compaction", "id": self.make_id("cmp"), "encrypted_content": seal(sealed)}

    def make_triggered(self, window: list[Item]) -> list[Item]:
        """The output for a trigger: one compaction item."""
        return [self.make_compaction(window)]

    def is_due(self, body: dict[str, Any], tokens: int) -> bool:
        """Whether a prompt is over the threshold that the request names."""
        thresholds = [entry.get("compact_threshold") for entry in body.get("context_management") or []]
        return any(isinstance(limit, int) and tokens > limit for limit in thresholds)

    def place_compaction(self, item: Item, output: list[Item]) -> list[Item]:
        """The output of a response that compacted by itself: the compaction item first."""
        return [item, *output]

    def drop_trigger(self, given: list[Item]) -> list[Item]:
        """The items without the control signal, which is nothing to keep."""
        return [item for item in given if item.get("type") != TRIGGER]

    def check_compact(self, body: dict[str, Any]) -> None:
        """Refuses what makes no compaction."""
        for name in body:
            if name not in _TAKEN:
                raise RequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        rules.check_model_given(body)
        rules.check_input_given(body)
        rules.check_not_empty(body)

    def list_users(self, window: list[Item]) -> list[Item]:
        """The user's messages, as /responses/compact lists them."""
        return [self.name_item(item) for item in window if item.get("role") == "user"]

    def finish_compaction(self, compacted: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        """What /responses/compact is answered with; nothing of it is kept."""
        return compacted

    def stream_compaction(self, index: int, item: Item) -> Iterator[dict[str, Any]]:
        """The events of a compaction item."""
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        yield {"type": "response.compaction.compacting", "output_index": index, "item_id": item["id"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}

    # The machinery.

    def compact(self, body: dict[str, Any]) -> dict[str, Any]:
        """A window compacted on demand."""
        self.check_compact(body)
        self.check_model(body)
        _, _, window, instructions = self.gather(body)
        users, item = self.list_users(window), self.make_compaction(window, closes=False)
        usage = self.make_usage(self.count_tokens(window, instructions, body), [item])
        compacted = {
            "id": self.make_id("resp"),
            "object": "response.compaction",
            "created_at": 0,
            "output": [*users, item],
            "usage": usage,
        }
        return self.finish_compaction(compacted, body)

    def open_window(self, window: list[Item]) -> list[Item]:
        shown: list[Item] = []
        for item in window:
            if item.get("type") in COMPACTIONS:
                sealed = self.open_item(item)
                shown = [*self.supersede(shown, sealed), *sealed.items]
            elif item.get("type") != TRIGGER:
                shown.append(item)
        return shown

    def list_kept(self, given: list[Item]) -> list[Item]:
        return self.drop_trigger(super().list_kept(given))

    def produce(self, window: list[Item], instructions: str, body: dict[str, Any]) -> list[Item]:
        if is_triggered(body):
            return self.make_triggered(window)
        if self.is_due(body, sum(map(count_item, window))):
            item = self.make_compaction(window)
            return self.place_compaction(item, super().produce(self.open_window([item]), instructions, body))
        return super().produce(window, instructions, body)

    def stream_item(self, index: int, item: Item) -> Iterator[dict[str, Any]]:
        if item["type"] == "compaction":
            return self.stream_compaction(index, item)
        return super().stream_item(index, item)
