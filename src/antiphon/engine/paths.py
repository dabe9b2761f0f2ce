"""The items of stored nodes, with their positions; and what is left of a path that things were deleted from.

It knows nodes alone. Invariant: a position names the same item for good, whatever else was blanked.
"""

from collections.abc import Iterable, Sequence
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


def count_positions(node: Node) -> int:
    """How many places a node has, blanked ones too."""
    return len(_decode_raws(node.input)) + len(_decode_raws(node.output))


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

    def list_named(self) -> list[tuple[str, Item]]:
        """All items with their ids, in order."""
        return [
            *zip(self.input_ids, self.input, strict=True),
            *zip(self.output_ids, self.output, strict=True),
        ]


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


def mend_path(steps: Sequence[Step]) -> tuple[list[Step], list[str]]:
    """A path that things were deleted from, without the halves of pairs: (steps, what was left out, in words).

    An output whose call is gone is left out, and so is a call whose output is gone: one that a later response
    went on from.
    """
    calls = {call_id for item in _walk(steps) if is_call(item) and (call_id := get_call_id(item))}
    outputs = {call_id for item in _walk(steps) if is_call_output(item) and (call_id := get_call_id(item))}
    last_response = max((at for at, step in enumerate(steps) if step.node.kind == "response"), default=-1)
    notes: list[str] = []

    def keep(item: Item, at: int) -> bool:
        call_id = get_call_id(item)
        if is_call_output(item) and call_id not in calls:
            notes.append(f"The call {call_id} was deleted; its output is not shown to the model.")
            return False
        if is_call(item) and call_id not in outputs and at < last_response and not _may_stay_open(item):
            notes.append(f"The output of call {call_id} was deleted; the call is not shown to the model.")
            return False
        return True

    mended: list[Step] = []
    for at, step in enumerate(steps):
        given = [row for row in zip(step.input_ids, step.input, strict=True) if keep(row[1], at)]
        made = [row for row in zip(step.output_ids, step.output, strict=True) if keep(row[1], at)]
        mended.append(
            Step(
                step.node,
                [item for _, item in given],
                [item for _, item in made],
                [item_id for item_id, _ in given],
                [item_id for item_id, _ in made],
            )
        )
    return mended, notes


def _walk(steps: Iterable[Step]) -> Iterable[Item]:
    for step in steps:
        yield from step.input
        yield from step.output


def _may_stay_open(item: Item) -> bool:
    """An async call may be answered late; one that was cut off is never answered."""
    return bool(getattr(item.value, "is_async", None)) or getattr(item.value, "status", None) == "incomplete"
