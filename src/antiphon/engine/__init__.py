"""One response, from request to record: gather, stream, record; and reading back what was recorded."""

from antiphon.backends import Relayed
from antiphon.engine.background import BackgroundSettings
from antiphon.engine.catalog import Alias, Catalog
from antiphon.engine.compaction_settings import CompactionSettings
from antiphon.engine.connection import Connection
from antiphon.engine.contents import ContentReader
from antiphon.engine.counting import TokenCounter
from antiphon.engine.engine import Engine
from antiphon.engine.grammars import GrammarChecker
from antiphon.engine.live import LiveResponse
from antiphon.engine.round import Round
from antiphon.engine.services import Services
from antiphon.engine.sink import EncodedEvent
from antiphon.engine.sources import EventSource
from antiphon.engine.windows import WindowCache

__all__ = [
    "Alias",
    "BackgroundSettings",
    "Catalog",
    "CompactionSettings",
    "Connection",
    "ContentReader",
    "EncodedEvent",
    "Engine",
    "EventSource",
    "GrammarChecker",
    "LiveResponse",
    "Relayed",
    "Round",
    "Services",
    "TokenCounter",
    "WindowCache",
]
