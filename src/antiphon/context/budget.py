"""How large a window may be after a compaction, and what each of its parts may have.

Pure numbers. Invariant: the parts never add up to more than the whole.
"""

import msgspec


class CompactionLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of the model's window, and the most of some of them in tokens."""

    #: A window that is fuller than this is compacted, where that is allowed.
    at_share: float = 0.9
    #: A pass must end at or under this share of the threshold.
    enough_share: float = 0.8
    user_share: float = 0.25
    user_max_tokens: int = 20_000
    retained_share: float = 0.4
    #: The newest items, which the free rungs do not touch and a summary leaves as they are.
    tail_share: float = 0.2
    #: Old results are elided in lines of this size, so that the lines stay where they are for a while.
    step_share: float = 0.12
    #: What one summary request keeps free at most: its prompt, the running summary, and the answer.
    reserve_share: float = 0.4
    summary_share: float = 0.1
    summary_max_tokens: int = 8_192
    facts_share: float = 0.05
    facts_max_tokens: int = 4_096
    index_share: float = 0.03
    index_max_tokens: int = 2_048


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one pass, in tokens as the model counts; `frame_tokens` is what stands around the items.

    The whole prompt must end at or under `limit_tokens`; where the free rungs bring it to `target_tokens`, no model is
    called. `limit_tokens` >= `target_tokens`.
    """

    limit_tokens: int
    target_tokens: int
    frame_tokens: int
    user_tokens: int
    retained_tokens: int
    tail_tokens: int
    step_tokens: int
    summary_tokens: int
    facts_tokens: int
    index_tokens: int

    @property
    def room_tokens(self) -> int:
        """What all the items together may have."""
        return max(self.limit_tokens - self.frame_tokens, 0)


def make_budget(
    limits: CompactionLimits,
    *,
    window_tokens: int | None,
    threshold_tokens: int | None,
    prompt_tokens: int,
    frame_tokens: int,
) -> Budget:
    """The budget of a pass over a prompt of `prompt_tokens`.

    `threshold_tokens`: what the prompt must not be over, where that is why the pass is made; None for a pass that a
    client asked for: it shall halve what can be made smaller.
    """
    whole = window_tokens if window_tokens is not None else max(threshold_tokens or 0, prompt_tokens)
    limit = int(whole * limits.at_share * limits.enough_share)
    if threshold_tokens is not None:
        limit = min(limit, int(threshold_tokens * limits.enough_share))
        target = limit
    else:
        # Where nobody knows the window, all that is asked for is less than there was.
        limit = limit if window_tokens is not None else max(prompt_tokens - 1, 0)
        target = min(limit, frame_tokens + max(prompt_tokens - frame_tokens, 0) // 2)
    # A client's threshold may be far under the window: then the shares are of what it leaves.
    base = (
        whole if window_tokens is None else min(whole, int(limit / (limits.at_share * limits.enough_share)))
    )
    return Budget(
        limit_tokens=limit,
        target_tokens=target,
        frame_tokens=frame_tokens,
        user_tokens=min(int(base * limits.user_share), limits.user_max_tokens),
        retained_tokens=int(base * limits.retained_share),
        tail_tokens=int(base * limits.tail_share),
        step_tokens=max(int(base * limits.step_share), 1),
        summary_tokens=max(min(int(base * limits.summary_share), limits.summary_max_tokens), 128),
        facts_tokens=max(min(int(base * limits.facts_share), limits.facts_max_tokens), 64),
        index_tokens=max(min(int(base * limits.index_share), limits.index_max_tokens), 64),
    )
