"""Families of faults: a double for each field, tool, choice, item, part, event and rule, made from the surface.

Each does one thing wrong with its one subject: it drops it without a word, refuses it without a name, or takes what
should be refused. The faults of compaction, made one by one, are a family too. It knows no requirement. Invariant: a
double's name is its family's and its subject's.
"""

from collections.abc import Callable, Iterator
from typing import Any

from antiphon.checker.doubles.compaction_faults import COMPACTION_DOUBLES
from antiphon.checker.doubles.honest import HonestDouble, Item, Record
from antiphon.checker.doubles.rules import FIELDS, RULES
from antiphon.checker.surface import ERRORS, SURFACE
from antiphon.protocol.errors import RequestError

Event = dict[str, Any]


def list_names(kind: str) -> list[str]:
    """The names of the subjects of a kind."""
    return [subject.partition(":")[2] for subject in SURFACE if subject.startswith(f"{kind}:")]


def _drop(value: Any, path: str) -> Any:
    """The value without what stands at the path."""
    head, _, rest = path.partition(".")
    if isinstance(value, list):
        return [_drop(part, path) for part in value]
    if not isinstance(value, dict) or head not in value:
        return value
    if not rest:
        return {key: part for key, part in value.items() if key != head}
    return {**value, head: _drop(value[head], rest)}


def _has(value: Any, path: str) -> bool:
    head, _, rest = path.partition(".")
    if isinstance(value, list):
        return any(_has(part, path) for part in value)
    if not isinstance(value, dict) or head not in value:
        return False
    return not rest or _has(value[head], rest)


class IgnoresField(HonestDouble):
    """Takes one field, and forgets it."""

    field = ""

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        top = self.field.partition(".")[0]
        # Of a field that this server does not know nothing can be left.
        path = self.field if top in FIELDS else top
        dropped: dict[str, Any] = _drop(body, path) if _has(body, self.field) else body
        return dropped


class HidesField(HonestDouble):
    """Refuses one field without a word about it."""

    field = ""

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        if _has(body, self.field):
            raise RequestError("Bad request.")
        return body


class IgnoresTool(HonestDouble):
    """Takes the tools of one type, and leaves them out; those that it does not have go with them."""

    tool = ""
    #: It may be that a choice names what was left out.
    allowed = frozenset({"unknown_tool_choice"})

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        tools = body.get("tools") or []
        kept = [tool for tool in tools if tool.get("type") != self.tool]
        if len(kept) == len(tools):
            return body
        return {**body, "tools": [tool for tool in kept if tool.get("type") == "function"], "include": []}


class IgnoresChoice(HonestDouble):
    """Takes one kind of choice, and chooses nothing; the tools that it does not have go with it."""

    choice = ""

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        choice = body.get("tool_choice")
        named = choice.get("type") if isinstance(choice, dict) else choice
        if named != self.choice:
            return body
        tools = [tool for tool in body.get("tools") or [] if tool.get("type") == "function"]
        return {**body, "tool_choice": "required" if named == "none" else "none", "tools": tools}


class IgnoresInclude(HonestDouble):
    """Takes one value of include, and includes nothing; the tools that it does not have go with it."""

    value = ""

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.value not in (body.get("include") or []):
            return body
        return {
            **body,
            "include": [value for value in body["include"] if value != self.value],
            "tools": [tool for tool in body.get("tools") or [] if tool.get("type") == "function"],
        }

    def list_input_items(self, record: Record) -> list[Item]:
        items = super().list_input_items(record)
        return _drop(items, "content.image_url") if "image" in self.value else items


class DropsItem(HonestDouble):
    """Takes the items of one type, and drops them; what they came with is taken, too."""

    item = ""

    def _is_dropped(self, item: Item) -> bool:
        # Without the user's messages there is nothing to answer.
        return item.get("type") == self.item and item.get("role") not in ("user", "assistant")

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body.get("input")
        kept = [item for item in given if not self._is_dropped(item)] if isinstance(given, list) else given
        self.allowed = frozenset() if kept == given else frozenset({"told_items"})
        return {**body, "input": kept} if kept != given else body


class DropsPart(HonestDouble):
    """Takes every item and part, and drops one kind of part, or one member of it."""

    part = ""
    allowed = frozenset({"told_items", "told_parts", "invalid_part", "told_tools"})

    def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body.get("input")
        return {**body, "input": self._strip(given)} if isinstance(given, list) else body

    def check_pairing(self, window: list[Item]) -> None:
        return

    def _strip(self, value: Any) -> Any:
        kind, _, member = self.part.partition(".")
        if isinstance(value, list):
            kept = [self._strip(part) for part in value]
            return [part for part in kept if part is not None]
        if not isinstance(value, dict):
            return value
        if value.get("type") == kind:
            return _drop(value, member) if member else None
        return {key: self._strip(part) for key, part in value.items()}


class GarblesEvent(HonestDouble):
    """Takes whatever it is asked, and sends one kind of event without its members."""

    event = ""

    def stream(self, response: dict[str, Any]) -> Iterator[Event]:
        events = [event for event in super().stream(response) if event["type"] != self.event]
        return iter([*events[:2], {"type": self.event}, *events[2:]])

    def number(self, events: Iterator[Event]) -> Iterator[Event]:
        for place, event in enumerate(events):
            yield {**event, "sequence_number": None if event["type"] == self.event else place}


class Allows(HonestDouble):
    """Takes one kind of wrong request."""


def _make_family(
    prefix: str, parent: type[HonestDouble], names: list[str], traits: Callable[[str], dict[str, Any]]
) -> dict[str, type[HonestDouble]]:
    return {
        f"{prefix}{name}": type(
            parent.__name__, (parent,), {"__doc__": f"{parent.__doc__} ({name})", **traits(name)}
        )
        for name in names
    }


#: Fields that other doubles forget, or without which nothing can be asked.
_ELSEWHERE = frozenset(
    {
        *(
            "model",
            "input",
            "previous_response_id",
            "conversation",
            "conversation.id",
            "stream",
            "background",
        ),
        *("include", "tools", "tool_choice", "max_output_tokens", "reasoning", "text", "stream_options"),
        *("context_management", "store", "metadata", "truncation"),
    }
)
#: Rules without which the honest double cannot go on; other doubles leave them out.
_WITHOUT_WHICH_IT_BREAKS = frozenset({"missing_model", "invalid_type"})
_FIELDS = [name for name in list_names("field") if not name.startswith("tools.") and name not in _ELSEWHERE]

#: Family -> its doubles by name.
FAMILIES: dict[str, dict[str, type[HonestDouble]]] = {
    prefix: _make_family(prefix, parent, names, traits)
    for prefix, parent, names, traits in (
        (
            "ignores-field-",
            IgnoresField,
            _FIELDS,
            lambda name: {"field": name},
        ),
        (
            "hides-field-",
            HidesField,
            _FIELDS,
            lambda name: {"field": name},
        ),
        ("ignores-tool-", IgnoresTool, list_names("tool"), lambda name: {"tool": name}),
        ("ignores-choice-", IgnoresChoice, list_names("choice"), lambda name: {"choice": name}),
        ("ignores-include-", IgnoresInclude, list_names("include"), lambda name: {"value": name}),
        ("drops-item-", DropsItem, list_names("item"), lambda name: {"item": name}),
        ("drops-part-", DropsPart, list_names("part"), lambda name: {"part": name}),
        ("garbles-event-", GarblesEvent, list_names("event"), lambda name: {"event": name}),
        (
            "allows-",
            Allows,
            [name for name in RULES if name in ERRORS and name not in _WITHOUT_WHICH_IT_BREAKS],
            lambda name: {"allowed": frozenset({name})},
        ),
    )
} | {"compaction-": {f"compaction-{name}": double for name, double in COMPACTION_DOUBLES.items()}}
FAMILY_DOUBLES: dict[str, type[HonestDouble]] = {
    name: double for family in FAMILIES.values() for name, double in family.items()
}
