"""Model servers behind one interface. Dialects are modules below; bootstrap alone names them."""

from antiphon.backends.interface import (
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
