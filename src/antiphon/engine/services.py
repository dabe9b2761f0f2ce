"""What the server gives to every round: stores, backends, tools, keys, counters. It decides nothing."""

from dataclasses import dataclass, field

from antiphon.context import SealKeys
from antiphon.engine.approvals import UsedApprovals
from antiphon.engine.catalog import Catalog
from antiphon.engine.compaction_settings import CompactionSettings
from antiphon.engine.contents import ContentReader
from antiphon.engine.counting import TokenCounter
from antiphon.engine.grammars import GrammarChecker
from antiphon.engine.pass_breaker import PassBreaker
from antiphon.engine.pass_memory import PassMemory
from antiphon.engine.round_store import RoundStore, Windows
from antiphon.engine.sealed_windows import OpenedWindows
from antiphon.engine.sealing import make_temporary_keys
from antiphon.engine.unstored import LaneRounds
from antiphon.engine.windows import WindowCache
from antiphon.hosted import Fetcher, McpConnector, SearchProvider
from antiphon.store import Store

#: Memory for windows where nothing else is configured.
CACHE_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class Services:
    """One object for each thing that rounds share."""

    catalog: Catalog
    store: Store
    cache: WindowCache = field(default_factory=lambda: WindowCache(CACHE_BYTES))
    contents: ContentReader = field(default_factory=ContentReader)
    counter: TokenCounter = field(default_factory=TokenCounter)
    #: Unless they are given, seals open in this process alone.
    seal_keys: SealKeys = field(default_factory=make_temporary_keys)
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    approvals: UsedApprovals = field(default_factory=UsedApprovals)
    opened: OpenedWindows = field(default_factory=OpenedWindows)
    breaker: PassBreaker = field(default_factory=PassBreaker)
    passes: PassMemory = field(default_factory=PassMemory)
    search: SearchProvider | None = None
    mcp: McpConnector | None = None
    fetcher: Fetcher | None = None
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    #: For a response that is not stored and that its connection holds: what it continues, and where it is kept.
    lane: LaneRounds | None = None

    @property
    def rounds(self) -> RoundStore:
        """Where the path of a round is read, and its end is kept."""
        return self.lane or self.store

    @property
    def windows(self) -> Windows:
        """Where the windows of rounds are kept."""
        return self.lane or self.cache

    async def close(self) -> None:
        """Let go of connections to the outside; the catalog and the store close themselves."""
        for opened in (self.search, self.fetcher, self.grammars):
            if opened is not None:
                await opened.close()
        self.counter.close()
