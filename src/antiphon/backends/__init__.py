"""Model servers behind one interface. Dialects are modules below; bootstrap alone names them."""

from antiphon.backends.interface import (
    NO_CALLS,
    Ask,
    Backend,
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    FinishReason,
    ModelFacts,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    Segment,
    TextDelta,
)

__all__ = [
    "NO_CALLS",
    "Ask",
    "Backend",
    "BackendEvent",
    "BackendUsage",
    "CallDelta",
    "Failed",
    "FinishReason",
    "Finished",
    "ModelFacts",
    "Opened",
    "ReasoningDelta",
    "RefusalDelta",
    "Segment",
    "TextDelta",
]
