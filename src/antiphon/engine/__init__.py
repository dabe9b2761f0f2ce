"""One response, from request to record: gather, stream, record; and reading back what was recorded."""

from antiphon.engine.catalog import Alias, Catalog
from antiphon.engine.engine import Engine, EngineSettings
from antiphon.engine.round import Round
from antiphon.engine.sink import EncodedEvent

__all__ = ["Alias", "Catalog", "EncodedEvent", "Engine", "EngineSettings", "Round"]
