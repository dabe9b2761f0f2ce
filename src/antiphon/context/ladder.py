"""The ladder: what of a window stays, what is replaced by a line, and what only a summary will tell.

Pure, and it writes no summary. Invariants: a plan that fits is within its budget; rows keep their order; a call and its
result stay or go together; the same rows and budget give the same plan; made again from its rows, it changes nothing.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from antiphon.context.budget import Budget
from antiphon.context.elision import Elision, cut_row, drop_row_images, find_elisions, find_mark
from antiphon.context.results import RESULT_FIELDS, SELF_ANSWERED
from antiphon.context.rows import Mark, Removal, RemovalReason, Row, Rung, add_tokens
from antiphon.context.truncation import group_items, make_entries
from antiphon.protocol.items import AgentMessage, McpApprovalResponse, Message, is_call_output

#: Nothing is cut to less: the line that names the whole must have room in it.
LEAST_CUT_TOKENS: Final = 96

_SYSTEM_ROLES: Final = ("system", "developer")
#: Items that stand for something else than themselves: tools, settings, a whole earlier path.
_KEPT_TYPES: Final = frozenset(
    {
        "additional_tools",
        "compaction",
        "compaction_summary",
        "configuration_update",
        "tool_search_call",
        "tool_search_output",
    }
)

_ELIDED: Final[tuple[RemovalReason, ...]] = ("uneventful", "superseded", "old")


class LadderPlan(msgspec.Struct, frozen=True):
    """What stays, in order, with items replaced where a rung did; what only the summary will tell; what was removed.

    `tokens`: of the whole prompt after it, as an estimate; where something is summarised, the summary, its facts and
    its index have their whole budget in it. `fits`: whether that is within the budget's limit.
    """

    rows: tuple[Row, ...]
    summarised: tuple[Row, ...]
    removals: tuple[Removal, ...]
    tokens: int
    fits: bool


# The free rungs


def plan_free(rows: Sequence[Row], budget: Budget, marks: Mapping[str, Mark]) -> LadderPlan:
    """Elide results, then drop images, until the prompt is at its target or nothing is left to take.

    All that tells nothing goes at once, then all that is superseded. Old results and images go up to lines that stand
    every `step_tokens` of them, counted from the root, so that the next pass is not due at once. The newest rows, and
    whatever no model has read yet, stay as they are.
    """
    plan = _FreePlan(rows, budget)
    if plan.is_done:
        return plan.finish()
    protected_from = min(_find_tail(rows, budget.tail_tokens), _find_unread(rows))
    elisions = find_elisions(rows, marks, protected_from)
    for reason in _ELIDED:
        offers = [
            (each.position, _put_elision(rows[each.position], each))
            for each in elisions
            if each.reason == reason
        ]
        plan.take(offers, reason, "elide", budget.step_tokens if reason == "old" else 0)
    if not plan.is_done:
        plan.take(_drop_images(plan.rows[:protected_from], marks), "image", "drop_images", budget.step_tokens)
    return plan.finish()


def _put_elision(row: Row, elision: Elision) -> Row:
    return msgspec.structs.replace(row, item=elision.item, tokens=elision.tokens, replaced="elide")


def _drop_images(rows: Sequence[Row], marks: Mapping[str, Mark]) -> list[tuple[int, Row]]:
    found = []
    for position, row in enumerate(rows):
        if row.replaced is None and find_mark(row, marks) != "keep":
            dropped = drop_row_images(row)
            if dropped is not None:
                found.append((position, dropped))
    return found


class _FreePlan:
    """The rows while rungs take from them."""

    def __init__(self, rows: Sequence[Row], budget: Budget) -> None:
        self.rows = list(rows)
        self._budget = budget
        self._tokens = budget.frame_tokens + add_tokens(rows)
        self._removals: list[Removal] = []

    @property
    def is_done(self) -> bool:
        return self._tokens <= self._budget.target_tokens

    def take(
        self, offers: Iterable[tuple[int, Row]], reason: RemovalReason, rung: Rung, step_tokens: int
    ) -> None:
        """Put the offered rows into their places up to the first line at which enough is free; step 0: all or none."""
        line = start = 0
        for position, row in offers:
            before = self.rows[position]
            if start >= line:
                if self.is_done:
                    return
                line = (start // step_tokens + 1) * step_tokens if step_tokens else sys.maxsize
            self.rows[position] = row
            freed = before.tokens - row.tokens
            self._removals.append(Removal(before.id, before.item.type, rung, reason, freed))
            self._tokens -= freed
            start += before.tokens

    def finish(self) -> LadderPlan:
        return LadderPlan(
            rows=tuple(self.rows),
            summarised=(),
            removals=tuple(self._removals),
            tokens=self._tokens,
            fits=self._tokens <= self._budget.limit_tokens,
        )


def _find_tail(rows: Sequence[Row], tail_tokens: int) -> int:
    """Where the newest rows begin that together have no more than so many tokens."""
    left = tail_tokens
    for position in range(len(rows) - 1, -1, -1):
        left -= rows[position].tokens
        if left < 0:
            return position + 1
    return 0


def _find_unread(rows: Sequence[Row]) -> int:
    """Where the rows begin that no model has answered yet: what the client said last, and the newest results."""
    for position in range(len(rows) - 1, -1, -1):
        item = rows[position].item
        if item.type in SELF_ANSWERED:
            return position
        said = isinstance(item.value, Message) and item.value.role != "assistant"
        if not (said or is_call_output(item) or isinstance(item.value, AgentMessage | McpApprovalResponse)):
            return position + 1
    return 0


# With a summary


def plan_summary(
    rows: Sequence[Row], budget: Budget, marks: Mapping[str, Mark], *, retain: Collection[str] = ()
) -> LadderPlan:
    """What stays beside a summary, and what only the summary will tell.

    Stays whatever: system and developer items, tools and settings, unfinished groups, results that no model has read,
    the first and the newest user message, and of the others the newest within `user_tokens`. Then the newest groups
    within `tail_tokens`, what the client marked to be kept, and what `retain` names, newest first; these and the
    unfinished ones share `retained_tokens`. Where what must stay does not fit, its longest results and messages are
    cut.
    """
    choice = _choose(rows, budget, marks, retain)
    kept = {position: rows[position] for position in choice.kept}
    removals = _cut_longest(kept, choice.room_tokens)
    summarised = tuple(row for position, row in enumerate(rows) if position not in kept)
    removals += [
        Removal(row.id, row.item.type, "summary", "summarised", row.tokens)
        for row in summarised
        if not _is_summary(row)
    ]
    tokens = budget.frame_tokens + add_tokens(kept.values()) + (_reserve(budget) if summarised else 0)
    return LadderPlan(
        rows=tuple(kept.values()),
        summarised=summarised,
        removals=tuple(removals),
        tokens=tokens,
        fits=tokens <= budget.limit_tokens,
    )


def list_selectable(rows: Sequence[Row], budget: Budget) -> list[str]:
    """The ids of the rows that a summariser may choose to retain: each with its group has room, and would go else."""
    choice = _choose(rows, budget, {}, ())
    room = min(choice.room_tokens - choice.tokens, budget.retained_tokens - choice.retained_tokens)
    return [
        rows[position].id
        for group, positions in choice.groups.items()
        if group not in choice.kept_groups
        and not _is_summary(rows[group])
        and sum(rows[at].tokens for at in positions) <= room
        for position in positions
    ]


def _reserve(budget: Budget) -> int:
    return budget.summary_tokens + budget.facts_tokens + budget.index_tokens


def _is_summary(row: Row) -> bool:
    """Whether a row is the summary of an earlier compaction, which the next one is folded into."""
    return row.replaced == "summary"


def _is_user_message(row: Row) -> bool:
    return isinstance(row.item.value, Message) and row.item.value.role == "user" and not _is_summary(row)


class _Choice:
    """Which groups stay; it adds a group only where there is room for it."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.groups: dict[int, list[int]] = {}
        for position, group in enumerate(group_items([row.item for row in rows])):
            self.groups.setdefault(group, []).append(position)
        self._costs = {
            group: sum(rows[position].tokens for position in positions)
            for group, positions in self.groups.items()
        }
        self.kept_groups: set[int] = set()
        self.tokens = 0
        self.retained_tokens = 0
        self.room_tokens = 0

    @property
    def kept(self) -> list[int]:
        """The positions that stay, in order."""
        return sorted(position for group in self.kept_groups for position in self.groups[group])

    def cost(self, group: int) -> int:
        return self._costs[group]

    def keep(self, group: int, *, retained: bool = False) -> None:
        if group not in self.kept_groups:
            self.kept_groups.add(group)
            self.tokens += self._costs[group]
            self.retained_tokens += self._costs[group] if retained else 0

    def has_room(self, group: int) -> bool:
        return group in self.kept_groups or self.tokens + self._costs[group] <= self.room_tokens

    def retain(self, group: int, most_tokens: int) -> bool:
        """Keep a group if it has room in the window and among what is retained; gives whether it is kept."""
        if group in self.kept_groups:
            return True
        fits = self.has_room(group) and self.retained_tokens + self._costs[group] <= most_tokens
        if fits:
            self.keep(group, retained=True)
        return fits


def _choose(
    rows: Sequence[Row], budget: Budget, marks: Mapping[str, Mark], retain: Collection[str]
) -> _Choice:
    choice = _Choice(rows)
    for group in _find_fixed(rows, choice):
        choice.keep(group)
    for group in _find_open(rows, choice):
        choice.keep(group, retained=True)
    users = [position for position, row in enumerate(rows) if _is_user_message(row)]
    for position in {*users[:1], *users[-1:]}:
        choice.keep(position)
    needs_summary = len(choice.kept_groups) < len(choice.groups)
    choice.room_tokens = budget.room_tokens - (_reserve(budget) if needs_summary else 0)
    _keep_users(choice, users, budget.user_tokens)
    _keep_tail(rows, choice, budget)
    wanted = set(retain)
    chosen = {
        group
        for group, positions in choice.groups.items()
        if not _is_summary(rows[group])
        and any(rows[at].id in wanted or find_mark(rows[at], marks) == "keep" for at in positions)
    }
    for group in sorted(chosen, reverse=True):
        choice.retain(group, budget.retained_tokens)
    return choice


def _find_fixed(rows: Sequence[Row], choice: _Choice) -> list[int]:
    """The groups that no compaction takes away: system text, settings, tools and the searches that found some."""
    return [
        group for group, positions in choice.groups.items() if any(_is_fixed(rows[at]) for at in positions)
    ]


def _is_fixed(row: Row) -> bool:
    value = row.item.value
    system = isinstance(value, Message) and value.role in _SYSTEM_ROLES
    return system or row.item.type in _KEPT_TYPES


def _find_open(rows: Sequence[Row], choice: _Choice) -> list[int]:
    """The groups that wait for an answer, and those with results that no model has read."""
    # Where nothing is asked now, only what is unfinished and what stands for something else may not be dropped.
    entries = make_entries([row.item for row in rows], [row.tokens for row in rows], newest=len(rows))
    unread = _find_unread(rows)
    return [
        group
        for group, positions in choice.groups.items()
        if not entries[group].droppable
        or any(at >= unread and rows[at].item.type in RESULT_FIELDS for at in positions)
    ]


def _keep_users(choice: _Choice, users: Sequence[int], user_tokens: int) -> None:
    """Beside the first and the newest user message the newest of the others that have room."""
    # One long message must not push all the others out.
    used = sum(min(choice.cost(position), user_tokens // 2) for position in {*users[:1], *users[-1:]})
    for position in reversed(users[1:-1]):
        cost = choice.cost(position)
        if used + cost <= user_tokens and choice.has_room(position):
            choice.keep(position)
            used += cost


def _keep_tail(rows: Sequence[Row], choice: _Choice, budget: Budget) -> None:
    left = budget.tail_tokens
    newest_first = sorted(choice.groups, key=lambda group: choice.groups[group][-1], reverse=True)
    for group in newest_first:
        if group in choice.kept_groups or _is_user_message(rows[group]) or _is_summary(rows[group]):
            continue
        left -= choice.cost(group)
        if left < 0 or not choice.retain(group, budget.retained_tokens):
            return


# What alone does not fit


def _cut_longest(kept: dict[int, Row], room_tokens: int) -> list[Removal]:
    """Cut the longest of the rows to one length, in place, so that all of them fit; those that can be cut."""
    whole = {position: row for position, row in kept.items() if _is_cuttable(row)}
    fixed_tokens = add_tokens(kept.values()) - add_tokens(whole.values())
    cut: dict[int, Row] = {}
    while whole and fixed_tokens + add_tokens(whole.values()) > room_tokens:
        level = _find_level([row.tokens for row in whole.values()], room_tokens - fixed_tokens)
        cut = {**cut, **{at: cut_row(row, level) for at, row in whole.items() if row.tokens > level}}
        stuck = [at for at in whole if at in cut and cut[at].tokens > level]
        if not stuck:
            break
        for at in stuck:
            fixed_tokens += cut[at].tokens
            del whole[at]
    removals = []
    for position, row in sorted(cut.items()):
        before = kept[position]
        if row is not before:
            kept[position] = row
            freed = before.tokens - row.tokens
            removals.append(Removal(row.id, row.item.type, "cut", "too_long", freed))
    return removals


def _is_cuttable(row: Row) -> bool:
    return row.tokens > LEAST_CUT_TOKENS and (
        row.item.type in RESULT_FIELDS or isinstance(row.item.value, AgentMessage) or _is_user_message(row)
    )


def _find_level(costs: Sequence[int], room_tokens: int) -> int:
    """To how many tokens the longest must come down so that all have room: `([10, 50, 90], 70)` -> 30."""
    left = room_tokens
    ordered = sorted(costs)
    for at, cost in enumerate(ordered):
        level = left // (len(ordered) - at)
        if cost > level:
            return max(level, LEAST_CUT_TOKENS)
        left -= cost
    return ordered[-1]
