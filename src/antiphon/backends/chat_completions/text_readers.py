"""Which reader the texts of an answer go through, if any: chosen by what was asked.

It knows the readers by their one interface. Invariant: a text that holds no call is the same behind it.
"""

from typing import Protocol

from antiphon.backends.chat_completions.call_texts import NativeSalvager
from antiphon.backends.chat_completions.schema_answers import SchemaReader
from antiphon.backends.chat_completions.schema_tools import uses_schema, wants_json_reply
from antiphon.backends.interface import Ask, BackendEvent


class TextReader(Protocol):
    """Finds the calls in the texts of one answer."""

    #: Whether the answer was cut off, though the server did not say so.
    cut: bool

    def read(self, events: list[BackendEvent]) -> list[BackendEvent]:
        """The same events with their texts read."""
        ...

    def close(self) -> list[BackendEvent]:
        """What is still held back."""
        ...


def make_text_reader(ask: Ask) -> TextReader | None:
    """None: texts pass as they come."""
    names = frozenset(tool.name for tool in ask.tools)
    if uses_schema(ask):
        return SchemaReader(names, json_reply=wants_json_reply(ask))
    if not names or ask.tool_choice == "none" or wants_json_reply(ask):
        return None
    return NativeSalvager(names)
