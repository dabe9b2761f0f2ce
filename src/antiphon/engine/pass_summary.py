"""The summary of one pass: who writes it, what it is told, and what it must be told once more.

It knows plans and models, and seals nothing. Invariant: a summary that stands for something that it was not told says
so in its first line.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from antiphon.backends import Ask, BackendUsage
from antiphon.context.budget import Budget
from antiphon.context.ladder import LadderPlan, list_selectable
from antiphon.context.rows import Row, add_tokens
from antiphon.context.summary import SPARE_CALLS, Summary, SummaryJob, extract_summary, summarise
from antiphon.context.summary_texts import SummaryTexts, note_omission, split_omission
from antiphon.engine.catalog import Target
from antiphon.engine.compaction_orders import Method
from antiphon.engine.counting import TokenCounter, make_target_key
from antiphon.engine.pass_windows import list_summarised
from antiphon.engine.path_rows import PathRows
from antiphon.engine.services import Services
from antiphon.engine.summarising import Summariser
from antiphon.protocol.errors import BackendError, RequestError
from antiphon.protocol.items import Item, Message, get_call_id, is_call, is_call_output

_log = logging.getLogger("antiphon.engine")


class SummaryWriter:
    """Has the summary of one pass written.

    `ask`: the prompt of the window; None where the model must not be asked behind it. `window_tokens`: what the
    conversation's model takes, as far as it is known before.
    """

    def __init__(
        self,
        path: PathRows,
        target: Target,
        ask: Ask | None,
        services: Services,
        counter: TokenCounter,
        *,
        model: str,
        method: Method,
        window_tokens: int | None,
        prompt_tokens: int,
    ) -> None:
        self._path = path
        self._own_target = target
        self._ask = ask
        self._services = services
        self._settings = services.compaction
        self._counter = counter
        self._model = model
        self._method = method
        self._told_window = window_tokens
        self._prompt_tokens = prompt_tokens
        self._summariser: Summariser | None = None
        #: What refusals without numbers have made likely.
        self._likely_window: int | None = None
        #: What the summariser was asked, and the ids of what it was told.
        self._job: SummaryJob | None = None
        self._is_own = False
        self._told: set[str] = set()

    @property
    def calls(self) -> int:
        """How often a model was asked."""
        return self._summariser.calls if self._summariser is not None else 0

    @property
    def usage(self) -> BackendUsage | None:
        """What all calls cost together; None where nothing was told."""
        return self._summariser.usage if self._summariser is not None else None

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """What must be said of that sum."""
        return self._summariser.warnings if self._summariser is not None else []

    @property
    def window_tokens(self) -> int | None:
        """What the conversation's model takes, with what the calls have told of it."""
        learned = self._summariser.learned_window if self._summariser is not None else None
        known = [each for each in (learned, self._likely_window, self._told_window) if each is not None]
        return min(known, default=None)

    async def write(self, rows: Sequence[Row], plan: LadderPlan, budget: Budget) -> Summary:
        """The summary of what a plan takes out of a window; `rows` are all rows of it."""
        told = self._list_items()
        tokens = {row.id: row.tokens for row in rows}
        gone = self._told = {row.id for row in list_summarised(plan)}
        last = max(at for at, row in enumerate(rows) if row.id in gone)
        shown = [
            msgspec.structs.replace(row, item=told[row.id])
            for row in rows[: last + 1]
            if row.id in gone or _is_said_by_user(row)
        ]
        target, is_own = await self._find_summariser()
        profile = target.profile
        ask = self._ask if is_own and not _has_open_calls(self._path.items) else None
        self._summariser = Summariser(target, ask, self._counter, is_own=is_own)
        self._is_own = is_own
        job = self._job = SummaryJob(
            rows=shown,
            stays=frozenset(row.id for row in shown if row.id not in gone),
            previous="\n\n".join(window.summary for window in self._path.windows.values() if window.summary),
            selectable={each: tokens[each] for each in list_selectable(rows, budget) if each in gone},
            retained_tokens=budget.retained_tokens,
            window_tokens=self._find_limit(target, is_own=is_own),
            prompt_tokens=self._prompt_tokens if ask is not None else None,
            summary_tokens=budget.summary_tokens,
            limits=self._settings.limits,
            sees_images=profile.sees_images is True,
            takes_schema=ask is None
            or not ask.tools
            or (profile.tools == "native" and profile.takes_schema_with_tools),
            forces_tool=profile.forces_tool_cached and profile.tool_choice != "ignored",
            texts=self._make_texts(),
        )
        if self._method == "extract":
            return await asyncio.to_thread(extract_summary, job)
        return self._learn(await summarise(job, self._summariser.ask))

    def _learn(self, summary: Summary) -> Summary:
        """What the calls have told of the conversation's own model is not asked for again."""
        if self._is_own and summary.learned_window is not None:
            self._likely_window = summary.learned_window
            told = self._summariser.learned_window if self._summariser is not None else None
            if told is not None:
                self._services.catalog.learn_window(self._own_target, told)
            else:
                self._services.catalog.learn_limit(self._own_target, summary.learned_window)
        return summary

    async def fold(self, summary: Summary, plan: LadderPlan, budget: Budget) -> Summary:
        """Less stays than was planned at first: what the summary was not told of is folded into it, or it says so."""
        gone = list_summarised(plan)
        unread = [row for row in gone if row.id not in self._told]
        job, summariser = self._job, self._summariser
        if not unread or job is None or summariser is None:
            return summary
        told = self._list_items()
        if summary.is_extract:
            rows = [msgspec.structs.replace(row, item=told[row.id]) for row in gone]
            again = await asyncio.to_thread(
                extract_summary,
                msgspec.structs.replace(job, rows=rows, summary_tokens=budget.summary_tokens),
            )
            self._told.update(row.id for row in rows)
            return msgspec.structs.replace(summary, text=again.text)
        window = self.window_tokens or job.window_tokens or self._prompt_tokens
        room = max(int(window * (1 - self._settings.limits.reserve_share)), 1)
        if summary.calls >= -(-self._prompt_tokens // room) + SPARE_CALLS:
            return _note_unread(summary, unread)
        more = await summarise(
            msgspec.structs.replace(
                job,
                rows=[msgspec.structs.replace(row, item=told[row.id]) for row in unread],
                previous=summary.text,
                selectable={},
                prompt_tokens=None,
                window_tokens=self._find_limit(self._own_target, is_own=True)
                if self._is_own
                else job.window_tokens,
                summary_tokens=budget.summary_tokens,
            ),
            summariser.ask,
        )
        self._learn(more)
        self._told.update(row.id for row in unread)
        return msgspec.structs.replace(
            more,
            retained=summary.retained,
            calls=summary.calls + more.calls,
            repairs=summary.repairs + more.repairs,
            omitted_items=summary.omitted_items + more.omitted_items,
            omitted_tokens=summary.omitted_tokens + more.omitted_tokens,
            problems=(*summary.problems, *more.problems),
        )

    def _list_items(self) -> Mapping[str, Item]:
        """The items as a model is shown them, by the ids of their rows."""
        return {row.id: item for row, item in zip(self._path.rows, self._path.items, strict=True)}

    def _find_limit(self, target: Target, *, is_own: bool) -> int | None:
        """What a request for a summary may have; where a longer one would be cut without a word, surely less."""
        window = self.window_tokens if is_own else target.window_tokens
        if window is None or not target.profile.truncates_silently:
            return window
        key = make_target_key(target.backend, target.model)
        return int(window / (1 + self._counter.get_error_share(key)))

    async def _find_summariser(self) -> tuple[Target, bool]:
        """The model that writes the summary, and whether it is the conversation's own."""
        name = self._settings.model
        if name is None or name == self._model:
            return self._own_target, True
        try:
            return await self._services.catalog.find(name), False
        except (RequestError, BackendError) as error:
            _log.warning(
                "the model for summaries cannot be had, so the conversation's own is asked: %s", error.message
            )
            return self._own_target, True

    def _make_texts(self) -> SummaryTexts:
        texts = SummaryTexts()
        wishes = self._settings.prompt
        if not wishes:
            return texts
        return msgspec.structs.replace(texts, demands=f"{wishes}\n\n{texts.demands}")


def _is_said_by_user(row: Row) -> bool:
    """Whether a row is a user's message: without it nobody would understand what was done, though it stays."""
    value = row.item.value
    return isinstance(value, Message) and value.role == "user" and row.replaced != "summary"


def _has_open_calls(items: Sequence[Item]) -> bool:
    """Whether a call has no output: behind it no message can stand."""
    answered = {get_call_id(item) for item in items if is_call_output(item)}
    return any(is_call(item) and get_call_id(item) not in answered for item in items)


def _note_unread(summary: Summary, unread: Sequence[Row]) -> Summary:
    """A summary that says what it was not told, though it stands for it."""
    text, items, tokens = split_omission(summary.text)
    items, tokens = items + len(unread), tokens + add_tokens(unread)
    return msgspec.structs.replace(
        summary,
        text=f"{note_omission(items, tokens)}\n\n{text}",
        omitted_items=summary.omitted_items + len(unread),
        omitted_tokens=summary.omitted_tokens + add_tokens(unread),
    )
