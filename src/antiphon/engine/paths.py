"""The items of stored nodes, with their positions; and what is left of a path that things were deleted from.

It knows nodes alone. Invariant: a position names the same item for good, whatever else was blanked.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import (
    Item,
    decode_stored_item,
    get_call_id,
    get_item_id,
    is_call,
    is_call_output,
)
from antiphon.sessions import Node

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
#: What stands in the place of an item that was deleted.
_BLANK: Final = b"null"


class Place(msgspec.Struct, frozen=True):
    """An item of a node: where it stands (input first, then output), the id that it bears or is given, and itself."""

    position: int
    id: str
    item: Item
    is_output: bool


def read_places(node: Node) -> list[Place]:
    """Every item of a node that was not blanked."""
    places: list[Place] = []
    start = 0
    for array, is_output in ((node.input, False), (node.output, True)):
        raws = _decode_raws(array)
        for offset, raw in enumerate(raws):
            if bytes(raw) == _BLANK:
                continue
            item = decode_stored_item(raw)
            position = start + offset
            item_id = get_item_id(item) or derive_item_id(item.type, node.id, position)
            places.append(Place(position, item_id, item, is_output))
        start += len(raws)
    return places


def has_gaps(path: Sequence[Node]) -> bool:
    """Whether anything was deleted from a path that should begin at the root: items, or whole nodes."""
    parents = [None, *(node.id for node in path[:-1])]
    return any(
        node.parent != parent
        or any(bytes(raw) == _BLANK for raw in (*_decode_raws(node.input), *_decode_raws(node.output)))
        for node, parent in zip(path, parents, strict=True)
    )


def read_blanks(node: Node) -> tuple[int, ...]:
    """The positions of a node from which items were deleted."""
    raws = (*_decode_raws(node.input), *_decode_raws(node.output))
    return tuple(position for position, raw in enumerate(raws) if bytes(raw) == _BLANK)


def list_living(array: bytes) -> list[msgspec.Raw]:
    """The items of a stored array that were not blanked, as they are."""
    raws = _decode_raws(array)
    return [raw for raw in raws if bytes(raw) != _BLANK]


class Step(msgspec.Struct):
    """What is shown of one node: its input and output items, each with its id."""

    node: Node
    input: list[Item]
    output: list[Item]
    input_ids: list[str]
    output_ids: list[str]


def read_path(path: Sequence[Node]) -> list[Step]:
    """The items of a whole path, node by node."""
    return [read_step(node) for node in path]


def read_step(node: Node) -> Step:
    """The items of one node."""
    places = read_places(node)
    given = [place for place in places if not place.is_output]
    made = [place for place in places if place.is_output]
    return Step(
        node,
        [place.item for place in given],
        [place.item for place in made],
        [place.id for place in given],
        [place.id for place in made],
    )


def mend_path(steps: Sequence[Step], *, holds_windows: bool = False) -> tuple[list[Step], list[str]]:
    """A path that things were deleted from or added to, as it can be sent: (steps, what was left out, in words).

    Each call stands once, each output once behind its call. A call that a later response went on from without an
    output is left out too. `holds_windows`: an output behind a compaction item may answer a call that is inside.
    """
    mending = _Mending(holds_windows=holds_windows)
    for at, step in enumerate(steps):
        for item in step.input:
            mending.take(item, at, may_be_half=False)
        for item in step.output:
            mending.take(item, at, may_be_half=True)
    left_out = mending.finish(
        max((at for at, step in enumerate(steps) if step.node.kind == "response"), default=-1)
    )
    keeps = iter([order not in left_out for order in range(mending.count)])
    mended: list[Step] = []
    for step in steps:
        given = [row for row in zip(step.input_ids, step.input, strict=True) if next(keeps)]
        made = [row for row in zip(step.output_ids, step.output, strict=True) if next(keeps)]
        mended.append(
            Step(
                step.node,
                [item for _, item in given],
                [item for _, item in made],
                [item_id for item_id, _ in given],
                [item_id for item_id, _ in made],
            )
        )
    return mended, [left_out[order] for order in sorted(left_out)]


class _Mending:
    """The calls and outputs of a path, walked from its root."""

    def __init__(self, *, holds_windows: bool) -> None:
        self._holds_windows = holds_windows
        self._may_be_inside = False
        self.count = 0
        #: What is left out: its place in the walk, and why.
        self._left_out: dict[int, str] = {}
        #: Calls that must have an output and have none yet: their place in the walk, and their step's.
        self._open: dict[str, tuple[int, int]] = {}
        #: Calls, and whether they may be answered again.
        self._calls: dict[str, bool] = {}

    def take(self, item: Item, at: int, *, may_be_half: bool) -> None:
        """One more item of the step `at`. A model's call that was cut off is half of one, and is never shown."""
        call_id = get_call_id(item)
        if is_call(item) and call_id:
            if not (may_be_half and getattr(item.value, "status", None) == "incomplete"):
                self._take_call(item, call_id, at)
        elif is_call_output(item):
            self._take_output(call_id)
        elif item.type in ("compaction", "compaction_summary"):
            self._may_be_inside = self._holds_windows
        self.count += 1

    def _take_call(self, item: Item, call_id: str, at: int) -> None:
        if call_id in self._calls:
            self._leave_out(f"The call {call_id} stands twice; the second one is not shown to the model.")
            return
        may_wait = bool(getattr(item.value, "is_async", None))
        self._calls[call_id] = may_wait
        if not may_wait:
            self._open[call_id] = (self.count, at)

    def _take_output(self, call_id: str | None) -> None:
        if self._may_be_inside and call_id is not None and call_id not in self._calls:
            # A second one would be left out.
            self._calls[call_id] = False
            return
        if call_id is None or call_id not in self._calls:
            self._leave_out(
                f"No call {call_id} stands before its output (it was deleted, or never added); the output is not "
                "shown to the model."
            )
        elif call_id in self._open:
            del self._open[call_id]
        elif not self._calls[call_id]:
            self._leave_out(f"The call {call_id} has two outputs; the second one is not shown to the model.")

    def _leave_out(self, why: str) -> None:
        self._left_out[self.count] = why

    def finish(self, last_response: int) -> dict[int, str]:
        """What is left out of the whole walk; `last_response`: the last step that went on from the ones before."""
        for call_id, (order, at) in self._open.items():
            if at < last_response:
                self._left_out[order] = (
                    f"The call {call_id} has no output (it was deleted, or never added); the call is not shown to "
                    "the model."
                )
        return self._left_out
