"""What was configured about compaction: for all models, and for one.

It decides nothing about a window. Invariant: what a model's own policy says counts before what is said for all.
"""

from typing import Literal, TypeAlias

import msgspec

from antiphon.context.budget import CompactionLimits

#: Whether a response that did not ask for it is compacted when that is due.
CompactionPolicy: TypeAlias = Literal["off", "auto"]


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all models."""

    limits: CompactionLimits = CompactionLimits()
    policy: CompactionPolicy = "off"
    #: The alias whose model writes summaries; None: the request's own model.
    model: str | None = None
    #: Whether a model whose window was compacted is offered the tool that fetches what was left out.
    recall: bool = False
    #: Whether readable compaction items of Ollama are taken as input.
    accepts_ollama: bool = False
    #: The operator's own wishes, put before the built-in instructions of a summary.
    prompt: str | None = None

    def allows(self, of_model: CompactionPolicy | None) -> bool:
        """Whether a response may be compacted unasked, given the policy of its model (None: it has none of its own)."""
        return (of_model or self.policy) == "auto"
