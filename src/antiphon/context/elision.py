"""Results, images and long texts out of a window, one item at a time, and a line in their place that names them.

It decides which results may go, not how many must. Invariants: a replaced item keeps its type and every field but its
result or content; nothing is replaced that is not larger than what takes its place; the same row gives the same bytes.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from antiphon.context.call_facts import UNKNOWN_CALL, CallFacts, FileRead, find_mark_key, read_call
from antiphon.context.image_costs import DEFAULT_BILLING, bill_image
from antiphon.context.results import (
    RESULT_FIELDS,
    SELF_ANSWERED,
    CallResult,
    decode_fields,
    is_failed,
    is_running,
    is_shortened,
    read_result,
    tell_error,
    tells_nothing,
)
from antiphon.context.rows import Mark, RemovalReason, Row, Rung
from antiphon.protocol.items import (
    Item,
    Message,
    UnknownItem,
    decode_stored_item,
    get_call_id,
    is_call,
)

#: An old result that tells a failure shrinks to this size.
OLD_FAILURE_TOKENS: Final = 256
#: What is put in the place of something is taken to have a token for so many bytes, and the marks of its item.
BYTES_PER_TOKEN: Final = 3
ITEM_TOKENS: Final = 8

_TOLD: Final[dict[RemovalReason, str]] = {
    "uneventful": "result left out, it told nothing",
    "superseded": "result left out, a newer one follows",
    "old": "old result left out",
    "image": "image left out",
    "summarised": "left out",
    "too_long": "middle left out",
}
#: Where an item holds content parts that may be images.
_PART_FIELDS: Final[dict[str, str]] = {
    "agent_message": "content",
    "custom_tool_call_output": "output",
    "function_call_output": "output",
    "message": "content",
}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})
#: What an item that is call and result in one asks for.
_ASKED_FIELDS: Final = ("action", "arguments", "code", "name", "queries", "server_label")

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


_Elided: TypeAlias = Literal["uneventful", "superseded", "old"]


class Elision(msgspec.Struct, frozen=True):
    """A result that may go: where it stands, why, the row's item with its output replaced, and what that costs."""

    position: int
    reason: RemovalReason
    item: Item
    tokens: int


def make_placeholder(row: Row, reason: RemovalReason, detail: str = "") -> str:
    """The line that stands for what was left out: `[old result left out: item fco_1, 812 tokens]`.

    A row that was shortened before tells no size, since it is not that of the whole.
    """
    told = [f"[{_TOLD[reason]}: item {row.id}", *([detail] if detail else [])]
    if row.replaced is None:
        told.append(f"{row.tokens} tokens")
    if not row.is_fetchable:
        told.append("not stored here")
    return ", ".join(told) + "]"


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


# Which results may go


class _Answer(msgspec.Struct, frozen=True):
    result: CallResult
    call: CallFacts


def find_elisions(rows: Sequence[Row], marks: Mapping[str, Mark], protected_from: int) -> list[Elision]:
    """The results before `protected_from` that may go: uneventful, then superseded, then old ones, each oldest first.

    A client's marks, by call id, decide over what we read from a result; `keep` protects it.
    """
    answers = _match_answers(rows)
    marked = {position: find_mark(rows[position], marks) for position in answers}
    superseded = _find_superseded(answers, {at for at, mark in marked.items() if mark not in (None, "keep")})
    found: dict[_Elided, list[Elision]] = {"uneventful": [], "superseded": [], "old": []}
    for position, answer in answers.items():
        mark = marked[position]
        if position >= protected_from or mark == "keep":
            continue
        reason: _Elided = "old"
        if mark is not None:
            reason = mark
        elif tells_nothing(answer.result, answer.call):
            reason = "uneventful"
        elif position in superseded:
            reason = "superseded"
        # The line for an old result is the shortest: a result may be worth that, and no other.
        for each in dict.fromkeys((reason, "old")):
            elision = _elide(rows[position], position, each, answer)
            if elision is not None:
                found[each].append(elision)
                break
    return [*found["uneventful"], *found["superseded"], *found["old"]]


def is_uneventful(item: Item, call: Item | None = None) -> bool:
    """Whether a result tells nothing: empty, no matches, a wait that brought nothing. Never an error.

    `call`: the call that it answers; it tells a search and a poll from other commands.
    """
    result = read_result(item)
    return result is not None and tells_nothing(result, _read_own_call(item, call))


def find_superseded(rows: Sequence[Row]) -> frozenset[int]:
    """The positions of results that a newer read of the same file, or a newer run of the very same call, repeats.

    A failure is not superseded and supersedes nothing; polls ask for what is new, so none repeats another.
    """
    return _find_superseded(_match_answers(rows), ())


def find_mark(row: Row, marks: Mapping[str, Mark]) -> Mark | None:
    """What the client says of a result: by its call's id, or by the id of its item."""
    key = find_mark_key(row.item)
    return (marks.get(key) if key else None) or marks.get(row.id)


def _read_own_call(item: Item, call: Item | None) -> CallFacts:
    if item.type in SELF_ANSWERED:
        return read_call(item)
    return read_call(call) if call is not None else UNKNOWN_CALL


def _match_answers(rows: Sequence[Row]) -> dict[int, _Answer]:
    """The results by position, each with the call that it answers; those that were replaced before tell nothing."""
    calls: dict[str, CallFacts] = {}
    answers: dict[int, _Answer] = {}
    for position, row in enumerate(rows):
        item = row.item
        if is_call(item):
            call_id = get_call_id(item)
            if call_id:
                calls[call_id] = read_call(item)
        elif item.type in RESULT_FIELDS and row.replaced is None:
            result = read_result(item)
            if result is not None:
                own = read_call(item) if item.type in SELF_ANSWERED else None
                answers[position] = _Answer(result, own or calls.get(get_call_id(item) or "", UNKNOWN_CALL))
    return answers


def _find_superseded(answers: Mapping[int, _Answer], unable: Collection[int]) -> frozenset[int]:
    """`unable`: positions that go themselves, and so stand for no others."""
    keys: set[bytes] = set()
    reads: dict[str, list[FileRead]] = {}
    found: set[int] = set()
    for position in sorted(answers, reverse=True):
        result, call = answers[position].result, answers[position].call
        if call.is_poll or not call.key or is_failed(result, call) or is_running(result):
            continue
        read = call.read
        newer = reads.get(read.path, []) if read else []
        if call.key in keys or (read and any(other.covers(read) for other in newer)):
            found.add(position)
        if position in unable:
            continue
        keys.add(call.key)
        if read and not is_shortened(result):
            reads.setdefault(read.path, []).append(read)
    return frozenset(found)


def _elide(row: Row, position: int, reason: RemovalReason, answer: _Answer) -> Elision | None:
    """The elision of one result; None where it would save nothing."""
    if reason == "old" and is_failed(answer.result, answer.call):
        shorter = cut_row(row, OLD_FAILURE_TOKENS)
        return None if shorter is row else Elision(position, reason, shorter.item, shorter.tokens)
    placeholder = make_placeholder(row, reason)
    if not answer.result.others and len(answer.result.text.encode()) <= len(placeholder.encode()):
        return None
    item = _put_text(row.item, placeholder)
    tokens = _estimate_result(item)
    return Elision(position, reason, item, tokens) if tokens < row.tokens else None


# Putting something in the place of a result


def _edit(item: Item, changes: Mapping[str, Any]) -> Item:
    """The item with some fields replaced; every other field keeps its bytes."""
    fields = decode_fields(item.raw)
    for name, value in changes.items():
        fields[name] = msgspec.Raw(_encode(value))
    return decode_stored_item(_encode(fields))


def _read_field(item: Item, name: str) -> Any:
    fields = decode_fields(item.raw)
    return _decode(fields[name]) if name in fields else None


def _put_text(item: Item, text: str) -> Item:
    """The item with one text as its whole result, in the form that its type has."""
    name = RESULT_FIELDS[item.type]
    if item.type == "shell_call_output":
        blank = [{**result, "stdout": "", "stderr": ""} for result in _list_commands(item)]
        return _edit(item, {name: [{**blank[0], "stdout": text}, *blank[1:]]} if blank else {name: text})
    if item.type == "web_search_call":
        return _edit(item, {name: [{"title": text}]})
    if item.type == "file_search_call":
        return _edit(item, {name: [{"text": text}]})
    if item.type == "code_interpreter_call":
        return _edit(item, {name: [{"type": "logs", "logs": text}]})
    error = _read_field(item, "error") if item.type == "mcp_call" else None
    if error is None:
        return _edit(item, {name: text})
    # The model is told the error alone.
    return _edit(item, {name: None, "error": {**error, "message": text} if isinstance(error, dict) else text})


def _list_commands(item: Item) -> list[dict[str, Any]]:
    """What each command of a shell call gave."""
    results = _read_field(item, "output")
    return [each for each in results if isinstance(each, dict)] if isinstance(results, list) else []


def _estimate_result(item: Item) -> int:
    """What an item costs whose result is made of texts of ours."""
    result = read_result(item)
    told = sum(len(text.encode()) for text in result.texts) if result else 0
    return _ceil(told, BYTES_PER_TOKEN) + _estimate_frame(item)


def _estimate_frame(item: Item) -> int:
    """What an item costs beside its texts: its marks, those of every command, and a call that is in it."""
    fields = decode_fields(item.raw)
    asked = 0
    if item.type in SELF_ANSWERED:
        asked = sum(len(bytes(fields[name])) for name in _ASKED_FIELDS if name in fields)
    commands = len(_list_commands(item)) if item.type == "shell_call_output" else 1
    return ITEM_TOKENS * max(commands, 1) + _ceil(asked, BYTES_PER_TOKEN)


# Images


def drop_row_images(row: Row, *, whatever_it_saves: bool = False) -> Row | None:
    """The row with a line in the place of each image; None where it has none, or that would save nothing.

    `whatever_it_saves`: the model cannot be shown images at all.
    """
    parts = _read_parts(row.item)
    images = [part for part in parts if _is_image(part)]
    if not images:
        return None
    placed = iter(_tell_images(row, len(images)))
    kept = [_place_text(part, next(placed)) if _is_image(part) else part for part in parts]
    told = sum(len(text.encode()) for text in _tell_images(row, len(images)))
    tokens = _count_beside_images(row, parts) + _ceil(told, BYTES_PER_TOKEN) + ITEM_TOKENS
    if tokens >= row.tokens and not whatever_it_saves:
        return None
    return _replace(row, _edit(row.item, {_PART_FIELDS[row.item.type]: kept}), tokens, "drop_images")


def _replace(row: Row, item: Item, tokens: int, rung: Rung) -> Row:
    return msgspec.structs.replace(row, item=item, tokens=tokens, replaced=rung)


def _read_parts(item: Item) -> list[Any]:
    """The parts of a user's message, an agent's, or an output; empty where it has none, or is a text."""
    name = _PART_FIELDS.get(item.type)
    if name is None or isinstance(item.value, UnknownItem):
        return []
    if isinstance(item.value, Message) and item.value.role != "user":
        return []
    try:
        parts = _read_field(item, name)
    except (msgspec.MsgspecError, RecursionError):
        return []
    return parts if isinstance(parts, list) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image"


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and str(part.get("type")) in _TEXT_PARTS and isinstance(part.get("text"), str)
    )


def _tell_images(row: Row, number: int) -> list[str]:
    if number == 1:
        return [make_placeholder(row, "image")]
    return [make_placeholder(row, "image", f"image {at} of {number}") for at in range(1, number + 1)]


def _place_text(part: dict[str, Any], text: str) -> dict[str, Any]:
    """A text part in the place of another one; a hint to the prompt cache stays."""
    hint = {name: part[name] for name in ("prompt_cache_breakpoint",) if name in part}
    return {"type": "input_text", "text": text, **hint}


def _count_beside_images(row: Row, parts: Sequence[Any]) -> int:
    """What of a row's tokens is not its images': we know the whole, and about how its pieces compare."""
    rest = sum(_measure(part) for part in parts if not _is_image(part))
    images = sum(_bill(part) for part in parts if _is_image(part))
    beside = _ceil(rest, BYTES_PER_TOKEN)
    return min(beside, _ceil(row.tokens * beside, beside + images)) if images else row.tokens


def _measure(part: Any) -> int:
    return len(part["text"].encode()) if _is_text(part) else len(_encode(part))


def _bill(image: Mapping[str, Any]) -> int:
    url, detail = image.get("image_url"), image.get("detail")
    return bill_image(
        url if isinstance(url, str) else None, detail if isinstance(detail, str) else None, DEFAULT_BILLING
    )


# Head and tail


def cut_row(row: Row, tokens: int) -> Row:
    """A result or a user's message cut to its head and tail, with a line between them that names it.

    Costs at most `tokens` where that has room for the line. Images and files become lines of their own. What cannot be
    cut, or is small enough, stays the very row that it is.
    """
    if row.tokens <= tokens:
        return row
    try:
        found = _read_cuttable(row)
    except (msgspec.MsgspecError, RecursionError):
        return row
    if found is None:
        return row
    texts, put, text_tokens = found
    whole = sum(len(text.encode()) for text in texts)
    if not whole:
        return row
    notice = make_placeholder(row, "too_long")
    frame = _estimate_frame(row.item) + _ceil(len(notice.encode()) + 2, BYTES_PER_TOKEN)
    # A text of many tokens for its length, such as a list of numbers, has them in its head and tail too.
    dense = text_tokens * BYTES_PER_TOKEN > whole
    per_token = (whole, text_tokens) if dense and text_tokens else (BYTES_PER_TOKEN, 1)
    room = max(tokens - frame, 0) * per_token[0] // per_token[1]
    kept = cut_texts(texts, room, f"\n{notice}\n")
    cost = frame + _ceil(min(room, whole) * per_token[1], per_token[0])
    return _replace(row, put(kept), cost, "cut") if cost < row.tokens else row


def cut_texts(texts: Sequence[str], room_bytes: int, notice: str) -> list[str]:
    """As many texts, of which the first and the last `room_bytes / 2` stay; `notice` stands where something is gone.

    `(["abcdef", "gh"], 4, "..")` -> `["ab..", "gh"]`
    """
    raws = [text.encode() for text in texts]
    if sum(map(len, raws)) <= room_bytes:
        return list(texts)
    kept = [b""] * len(raws)
    head = room_bytes // 2
    at = 0
    while len(raws[at]) <= head:
        kept[at] = raws[at]
        head -= len(raws[at])
        at += 1
    start = raws[at][:head].decode(errors="ignore")
    tail = room_bytes - room_bytes // 2
    last = len(raws) - 1
    while last > at and len(raws[last]) <= tail:
        kept[last] = raws[last]
        tail -= len(raws[last])
        last -= 1
    rest = raws[last][len(raws[last]) - tail :] if tail else b""
    told = [each.decode() for each in kept]
    told[last] = rest.decode(errors="ignore")
    told[at] = start + notice + (told[at] if last == at else "")
    return told


_Put = Callable[[list[str]], Item]


def _read_cuttable(row: Row) -> tuple[list[str], _Put, int] | None:
    """The texts of a row, how others are put in their place, and how many tokens they have; None: it stays whole."""
    item = row.item
    if isinstance(item.value, UnknownItem):
        return None
    parts = _read_parts(item)
    if parts:
        return _read_cuttable_parts(row, parts)
    if isinstance(item.value, Message) or item.type == "agent_message":
        text = _read_field(item, "content")
        if getattr(item.value, "role", "user") != "user" or not isinstance(text, str):
            return None
        return [text], lambda kept: _edit(item, {"content": kept[0]}), row.tokens
    if item.type == "shell_call_output":
        return _read_cuttable_commands(row)
    result = read_result(item)
    if result is None or not result.texts:
        return None
    texts = list(result.texts)
    if item.type == "mcp_call" and (error := _read_field(item, "error")) is not None:
        texts = [tell_error(error)]
    whole = "\n".join(texts)
    return [whole], lambda kept: _put_text(item, kept[0]), max(row.tokens - _estimate_frame(item), 0)


def _read_cuttable_parts(row: Row, parts: Sequence[Any]) -> tuple[list[str], _Put, int]:
    images = iter(_tell_images(row, sum(map(_is_image, parts))))
    texts = [
        part["text"] if _is_text(part) else next(images) if _is_image(part) else _tell_part(row, part)
        for part in parts
    ]

    def put(kept: list[str]) -> Item:
        pairs = [
            (
                {**part, "text": text}
                if _is_text(part)
                else _place_text(part if isinstance(part, dict) else {}, text)
            )
            for part, text in zip(parts, kept, strict=True)
            if text
        ]
        return _edit(row.item, {_PART_FIELDS[row.item.type]: pairs})

    return texts, put, _count_beside_images(row, parts)


def _tell_part(row: Row, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    told = {"input_file": "file", "input_audio": "audio", "input_video": "video"}.get(str(kind), "part")
    return f"[{told} left out: item {row.id}]"


def _read_cuttable_commands(row: Row) -> tuple[list[str], _Put, int] | None:
    results = _list_commands(row.item)
    if not results:
        return None
    streams = [(at, name) for at in range(len(results)) for name in ("stdout", "stderr")]

    def put(kept: list[str]) -> Item:
        changed = [dict(result) for result in results]
        for (at, name), text in zip(streams, kept, strict=True):
            changed[at][name] = text
        return _edit(row.item, {"output": changed})

    texts = [results[at].get(name) for at, name in streams]
    return [text if isinstance(text, str) else "" for text in texts], put, row.tokens
