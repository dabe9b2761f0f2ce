"""The summary that no model writes: heads of what was said, a line for each call, the plan as it stands.

By rule alone. Invariants: the same rows give the same text, it never has more than its budget, and its first line says
that no model wrote it and how much of the rows it does not tell.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.context.item_texts import tell_call, tell_item, tell_message, tell_result
from antiphon.context.lowering import RUNNING_TEXT
from antiphon.context.rows import Row
from antiphon.protocol.hosted_items import (
    ApplyPatchCallOutput,
    ExitOutcome,
    McpCall,
    ShellCallOutput,
    ShellResult,
    WebSearchCall,
)
from antiphon.protocol.items import (
    AgentMessage,
    Item,
    McpApprovalResponse,
    Message,
    Reasoning,
    get_call_id,
    is_call,
    is_call_output,
)

#: No text has fewer bytes to a token than this on the whole.
BYTES_PER_TOKEN: Final = 3
#: How an extract begins, whatever else its first line says.
EXTRACT_MARK: Final = "[No model wrote this summary; it was put together by rule"
#: Characters of a line, for those that are told best, less well, and only just.
_USER_CHARACTERS: Final = (600, 240, 100)
_ASSISTANT_CHARACTERS: Final = (320, 160, 60)
_CALL_CHARACTERS: Final = (200, 120, 60)
#: Of the budget, what an earlier summary and the state of the work may have, and what each level of lines may fill.
_PREVIOUS_SHARE: Final = 0.35
_STATE_SHARE: Final = 0.3
_LEVEL_SHARES: Final = (0.6, 0.85, 1.0)
_SENTENCES: Final = re.compile(r"(.+?(?:[.!?](?=\s)|\n|\Z)){1,3}", re.DOTALL)
_EXIT_CODE: Final = re.compile(
    r'(?:exit(?:ed with)?[ _-]?(?:code|status)"?\s{0,4}[:=]?\s{0,4}|Process exited with code )(-?\d{1,5})',
    re.IGNORECASE,
)
_TIMED_OUT: Final = re.compile(r"\A\W*(?:command |process )?timed out|\btimed out after\b", re.IGNORECASE)
_FAILED_START: Final = re.compile(r"\A\s*(?:Error\b|Traceback|fatal:|failed\b|\[failed\])", re.IGNORECASE)
_TELLING_LINE: Final = re.compile(
    r"^(?:E  +\S.*|FAILED .*|.*\b\w*(?:Error|Exception)\b:.*|.*\b(?:error|fatal|panic|failed|denied|not found)\b.*)$",
    re.IGNORECASE | re.MULTILINE,
)
#: Of a line, what is looked at and could be told.
_LINE_CHARACTERS: Final = 400
#: Of a result, what is looked at for how it ended: its head and its tail.
_LOOKED_CHARACTERS: Final = 20_000
#: Lines of a result that say how it ended, as the model is told it, and nothing of what was printed.
_OUTCOME_LINE: Final = re.compile(
    r"\[(?:exit code -?\d+|timed out|stderr|failed|completed|command \d+: [^]]*)\]\Z"
)
_PLAN_NAME: Final = re.compile(r"plan|todo", re.IGNORECASE)
_STEP_KEYS: Final = ("step", "content", "task", "title", "text", "description")
_DONE_STATES: Final = frozenset({"completed", "complete", "done", "finished"})

_decode = msgspec.json.Decoder().decode


class _Line(NamedTuple):
    """What is told of an item, in three lengths; `is_user`: told before anything else where there is little room."""

    texts: tuple[str, str, str]
    is_user: bool


class _Ending(NamedTuple):
    """How a call ended: not yet (None), well, or badly and with which line."""

    failed: bool | None
    line: str


def make_extract(rows: Sequence[Row], budget_tokens: int, previous: str = "") -> str:
    """The rows in at most `budget_tokens`, the newest told best; `previous` is an earlier summary."""
    room = budget_tokens * BYTES_PER_TOKEN
    items = [row.item for row in rows]
    results = _collect_results(items)
    made = (_make_line(item, results.get(at)) for at, item in enumerate(items))
    lines = [line for line in made if line is not None]
    blocks = []
    earlier = _drop_mark(previous)
    if earlier:
        blocks.append(f"## Earlier summary\n{_cut_middle(earlier, int(room * _PREVIOUS_SHARE))}")
    state = _tell_state(items, results)
    if state:
        blocks.append(_cut_end(state, int(room * _STATE_SHARE)))
    used = _size("\n\n".join(blocks)) + _size(_head_line(len(lines), len(lines))) + _size(_COURSE) + 8
    told, missing = _fill_course(lines, room - used)
    if told:
        blocks.append("\n".join([_COURSE, *told]))
    return _cut_end("\n\n".join([_head_line(len(lines), missing), *blocks]), room)


_COURSE: Final = "## What happened, oldest first"


def _head_line(lines: int, missing: int) -> str:
    untold = f"; {missing} of the {lines} things that happened are not told" if missing else ""
    return f"{EXTRACT_MARK}{untold}. Check the state of the work before you go on.]"


def _drop_mark(previous: str) -> str:
    """An earlier summary without the first line of an extract, so that extracts do not nest."""
    told = previous.strip()
    return told.partition("\n")[2].strip() if told.startswith(EXTRACT_MARK) else told


# What happened


def _make_line(item: Item, result: Item | None) -> _Line | None:
    value = item.value
    if isinstance(value, Message):
        text = tell_message(value).strip()
        if not text:
            return None
        if value.role != "assistant":
            return _shorten_line(value.role, text, _USER_CHARACTERS, is_user=value.role == "user")
        return _shorten_line("assistant", _take_sentences(text), _ASSISTANT_CHARACTERS)
    if isinstance(value, Reasoning) or is_call_output(item) or item.type == "mcp_list_tools":
        return None
    called = tell_call(item)
    if called is not None:
        return _make_call_line(item, called, result)
    if isinstance(value, AgentMessage | McpApprovalResponse):
        return _shorten_line("", tell_item(item), _ASSISTANT_CHARACTERS)
    return _shorten_line("", tell_item(item), _CALL_CHARACTERS)


def _make_call_line(item: Item, called: tuple[str, str], result: Item | None) -> _Line:
    name, arguments = called
    flat = _flatten(arguments)
    ending = _judge_result(item, result)
    told = {None: "no result", False: "ok", True: "failed"}[ending.failed]
    outcome = f"{told}: {ending.line}" if ending.line else told
    first, second, third = (
        f"- {name} {_cut_head(flat, limit)} -> {_cut_head(outcome, limit)}" for limit in _CALL_CHARACTERS
    )
    return _Line((first, second, third), is_user=False)


def _shorten_line(who: str, text: str, limits: tuple[int, int, int], *, is_user: bool = False) -> _Line:
    flat = _flatten(text)
    prefix = f"- {who}: " if who else "- "
    first, second, third = (f"{prefix}{_cut_head(flat, limit)}" for limit in limits)
    return _Line((first, second, third), is_user)


def _fill_course(lines: Sequence[_Line], room: int) -> tuple[list[str], int]:
    """As many lines as there is room for: the first and what users said, then from the newest back, ever shorter."""
    told: dict[int, str] = {}
    used = 0

    def put(position: int, level: int, share: float) -> bool:
        nonlocal used
        text = lines[position].texts[level]
        more = _size(text) + 1 - (_size(told[position]) + 1 if position in told else 0)
        if used + more > room * share:
            return False
        told[position] = text
        used += more
        return True

    users = [position for position, line in enumerate(lines) if line.is_user]
    # Where there is little room, users' words come before calls, and the first before all.
    for position in [*users[:1], *reversed(users[1:])]:
        put(position, 2, 0.5)
    newest = len(lines) - 1
    for level, share in enumerate(_LEVEL_SHARES):
        while newest >= 0 and put(newest, level, share):
            newest -= 1
    return [told[position] for position in sorted(told)], len(lines) - len(told)


# How calls ended


def _collect_results(items: Sequence[Item]) -> dict[int, Item]:
    """The newest result of each call, by the call's position; an id that comes twice is of two calls."""
    found: dict[int, Item] = {}
    callers: dict[str, int] = {}
    for at, item in enumerate(items):
        call_id = get_call_id(item)
        if call_id is not None and is_call(item):
            callers[call_id] = at
        elif call_id in callers and is_call_output(item):
            found[callers[call_id]] = item
    return found


def _judge_result(item: Item, result: Item | None) -> _Ending:
    value = item.value
    if isinstance(value, McpCall | WebSearchCall):
        if value.error is not None or value.status == "failed":
            return _Ending(True, _find_telling_line(tell_result(item)))
        return _Ending(False, "")
    if result is None:
        return _Ending(None, "")
    text = tell_result(result)
    failed = _has_failed(result, text)
    return _Ending(failed, _find_telling_line(text) if failed else _find_last_line(text))


def _has_failed(result: Item, text: str) -> bool:
    value = result.value
    if isinstance(value, ApplyPatchCallOutput):
        return value.status == "failed"
    if isinstance(value, ShellCallOutput):
        return any(
            isinstance(each, ShellResult)
            and not (isinstance(each.outcome, ExitOutcome) and each.outcome.exit_code == 0)
            for each in value.output
        )
    looked = _look_at(text)
    codes = _EXIT_CODE.findall(looked)
    if codes:
        return any(int(code) for code in codes)
    return bool(
        _TIMED_OUT.search(looked)
        or _FAILED_START.search(looked)
        or "Traceback (most recent call last)" in looked
    )


def _look_at(text: str) -> str:
    if len(text) <= 2 * _LOOKED_CHARACTERS:
        return text
    return f"{text[:_LOOKED_CHARACTERS]}\n{text[-_LOOKED_CHARACTERS:]}"


def _find_telling_line(text: str) -> str:
    """The last line that says what is wrong, else the last line."""
    found = ""
    for line in _iter_lines(_look_at(text)):
        if _TELLING_LINE.match(line) and not _EXIT_CODE.search(line):
            found = line
    return found or _find_last_line(text)


def _find_last_line(text: str) -> str:
    last = ""
    for line in _iter_lines(_look_at(text)):
        last = line
    return last


def _iter_lines(text: str) -> Iterator[str]:
    """The lines of a result that say something; those of a JSON envelope are those of its output."""
    if text.lstrip().startswith("{"):
        try:
            fields = _decode(text)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            fields = None
        if isinstance(fields, dict) and isinstance(fields.get("output"), str):
            text = fields["output"]
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not _OUTCOME_LINE.match(stripped):
            yield stripped[:_LINE_CHARACTERS]


# Done and open


def _tell_state(items: Sequence[Item], results: dict[int, Item]) -> str:
    """What is open and done, as far as rules can tell: the newest plan, calls without a result, the last word."""
    open_lines: list[str] = []
    done_lines: list[str] = []
    plan = _find_plan(items)
    for step, state in plan:
        (done_lines if state in _DONE_STATES else open_lines).append(
            f"- {_cut_head(_flatten(step), 160)}" + ("" if state in _DONE_STATES else f" ({state or 'open'})")
        )
    for at, item in enumerate(items):
        called = tell_call(item) if is_call(item) else None
        if called is not None and _is_unfinished(results.get(at)):
            name, arguments = called
            open_lines.append(f"- the call {name} {_cut_head(_flatten(arguments), 120)} has no result")
    last = _find_last_word(items)
    blocks = []
    if open_lines:
        blocks.append("\n".join(["## Work open", *open_lines]))
    if last:
        blocks.append(f"## The assistant's last word\n{_cut_head(last, 500)}")
    if done_lines:
        blocks.append("\n".join(["## Work done", *done_lines]))
    return "\n\n".join(blocks)


def _is_unfinished(result: Item | None) -> bool:
    return result is None or tell_result(result).startswith(RUNNING_TEXT)


def _find_plan(items: Sequence[Item]) -> list[tuple[str, str]]:
    """The steps of the newest call that sets a plan or a list of tasks, and how far each is."""
    for item in reversed(items):
        called = tell_call(item)
        if called is None or not _PLAN_NAME.search(called[0]):
            continue
        steps = _read_steps(called[1])
        if steps:
            return steps
    return []


def _read_steps(arguments: str) -> list[tuple[str, str]]:
    try:
        fields = _decode(arguments)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return []
    lists: list[Any] = [fields] if isinstance(fields, list) else []
    if isinstance(fields, dict):
        lists = [field for field in fields.values() if isinstance(field, list)]
    for members in lists:
        steps = [_read_step(member) for member in members if isinstance(member, dict)]
        told = [step for step in steps if step is not None]
        if told:
            return told
    return []


def _read_step(member: dict[str, Any]) -> tuple[str, str] | None:
    for key in _STEP_KEYS:
        step = member.get(key)
        if isinstance(step, str) and step.strip():
            state = member.get("status", member.get("state", ""))
            if member.get("done") is True or member.get("completed") is True:
                state = "done"
            return step, state.lower() if isinstance(state, str) else ""
    return None


def _find_last_word(items: Sequence[Item]) -> str:
    for item in reversed(items):
        if isinstance(item.value, Message) and item.value.role == "assistant":
            text = _flatten(tell_message(item.value))
            if text:
                return text
    return ""


# Lengths


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _flatten(text: str) -> str:
    """The text on one line. Only as much of it is looked at as a line could hold."""
    return " ".join(text[:4_000].split())


def _take_sentences(text: str) -> str:
    found = _SENTENCES.match(text[:4_000])
    return found[0] if found is not None else text


def _cut_head(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters]}..."


def _cut_end(text: str, size: int) -> str:
    """The text within so many bytes, at the end of a line where one is near."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= size:
        return text
    kept = raw[: max(size - 3, 0)].decode("utf-8", "ignore")
    line = kept.rfind("\n")
    return kept[:line] if line > len(kept) * 3 // 4 else f"{kept}..."[: max(size, 0)]


def _cut_middle(text: str, size: int) -> str:
    """Head and tail of the text within so many bytes."""
    raw = text.encode("utf-8", "replace")
    note = "\n[...]\n"
    if len(raw) <= size:
        return text
    kept = max(size - len(note), 0)
    head = raw[: kept // 2].decode("utf-8", "ignore")
    tail = raw[len(raw) - (kept - kept // 2) :].decode("utf-8", "ignore")
    return f"{head}{note}{tail}" if kept else ""
