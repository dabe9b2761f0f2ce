"""The settings of compaction, and what they must be to each other.

It reads nothing. Invariant: shares that pass the checks leave a window that fits its parts together.
"""

from collections.abc import Iterator
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from antiphon.context.budget import CompactionLimits

_DEFAULTS: Final = CompactionLimits()
#: The largest file of the operator's own wishes for summaries.
PROMPT_FILE_BYTES: Final = 64 * 1024
#: No threshold is lower: under it there is little but tools and instructions.
THRESHOLD_TOKENS: Final = 1_000

Policy: TypeAlias = Literal["off", "auto"]


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a conversation is compacted, by whom, and what is kept of it."""

    policy: Annotated[
        Policy,
        Meta(
            description="`auto`: a response that did not ask for it is compacted too, when its prompt is due; `off`: "
            "one that asks for it alone. `models.NAME.compaction` goes over it."
        ),
    ] = "off"
    model: Annotated[
        str,
        Meta(
            description="The alias under `[models]` whose model writes summaries; empty: the model of the request, "
            "whose server has most of the prompt in its cache."
        ),
    ] = ""
    prompt_file: Annotated[
        str,
        Meta(
            description="Text file of your own wishes for summaries, put before the built-in instructions; at most "
            "64 KiB."
        ),
    ] = ""
    recall: Annotated[
        bool,
        Meta(
            description="Whether a model whose window was compacted is offered a tool `recall`, run by this server, "
            "that fetches what was left out."
        ),
    ] = False
    accept_ollama: Annotated[
        bool,
        Meta(
            description="Whether compaction items that Ollama made, which anybody can read and write, are taken as "
            "input."
        ),
    ] = False
    at_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The share of the model's window over which a prompt is due to be compacted, where that is "
            "allowed.",
        ),
    ] = _DEFAULTS.at_share
    enough_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="A pass must end at or under this share of the threshold that was passed, so that the next one "
            "is some way off.",
        ),
    ] = _DEFAULTS.enough_share
    user_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The share of the window for messages of the user that a summary leaves as they are, the "
            "newest first; the first one of all is always kept.",
        ),
    ] = _DEFAULTS.user_share
    user_max_tokens: Annotated[
        int, Meta(ge=1, description="The most tokens of those messages, however large the window is.")
    ] = _DEFAULTS.user_max_tokens
    retained_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The share of the window for all other items that a summary leaves as they are: the newest, "
            "unfinished calls, and those that the summary's model chose.",
        ),
    ] = _DEFAULTS.retained_share
    tail_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The share of the window for the newest items, which no compaction touches; part of "
            "`retained_share`.",
        ),
    ] = _DEFAULTS.tail_share
    step_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="Old tool results are shortened in steps of this share of the window: the smaller, the more is "
            "kept, and the more often the model server's prompt cache is lost.",
        ),
    ] = _DEFAULTS.step_share
    reserve_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The most that a request for a summary keeps free of its window: for its instructions, the "
            "summary so far, and the answer.",
        ),
    ] = _DEFAULTS.reserve_share
    summary_share: Annotated[
        float, Meta(gt=0, lt=1, description="The share of the window for a summary's text.")
    ] = _DEFAULTS.summary_share
    summary_max_tokens: Annotated[
        int, Meta(ge=128, description="The most tokens of a summary, however large the window is.")
    ] = _DEFAULTS.summary_max_tokens
    facts_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The share of the window for the factsheet: paths, ids, hashes, error codes, URLs and numbers "
            "with units, taken by rule from what a summary stands for.",
        ),
    ] = _DEFAULTS.facts_share
    facts_max_tokens: Annotated[
        int, Meta(ge=64, description="The most tokens of a factsheet, however large the window is.")
    ] = _DEFAULTS.facts_max_tokens
    index_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The share of the window for the list of what was left out, by the ids that it can be fetched "
            "by.",
        ),
    ] = _DEFAULTS.index_share
    index_max_tokens: Annotated[
        int, Meta(ge=64, description="The most tokens of that list, however large the window is.")
    ] = _DEFAULTS.index_max_tokens
    prompt: str = ""

    def make_limits(self) -> CompactionLimits:
        """The shares and the most of them, as a pass is planned by."""
        names = CompactionLimits.__struct_fields__
        return CompactionLimits(**{name: getattr(self, name) for name in names})


class ShareProblem(NamedTuple):
    """What is wrong between shares: at which setting, what, and what to do."""

    key: str
    problem: str
    remedy: str


def find_share_problems(settings: CompactionSettings) -> Iterator[ShareProblem]:
    """The shares that do not go together, each named at the one that is most likely wrong."""
    if settings.tail_share > settings.retained_share:
        yield ShareProblem(
            "tail_share",
            f"The newest items are part of retained_share, which is {settings.retained_share:g}.",
            "Lower it, or raise retained_share.",
        )
    parts = ("user_share", "retained_share", "summary_share", "facts_share", "index_share")
    whole = sum(getattr(settings, name) for name in parts)
    # Sums of fractions are off by a little.
    if whole > 1 + 1e-9:
        largest = max(parts, key=lambda name: float(getattr(settings, name)))
        yield ShareProblem(
            largest,
            f"{', '.join(parts)} come to {whole:g} together, which is more than the window.",
            "Lower one of them, so that they come to 1 at most.",
        )
    if 2 * settings.summary_share >= settings.reserve_share:
        yield ShareProblem(
            "reserve_share",
            f"A request for a summary holds the summary so far and a new one, each of {settings.summary_share:g}.",
            "Raise it over twice summary_share.",
        )
