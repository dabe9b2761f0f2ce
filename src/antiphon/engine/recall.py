"""The tool `recall`: a model fetches by itself what a compaction left out of its window.

It knows the items of one conversation's path, no other and no stream. Invariants: nothing is found by an id that does
not stand on that path; an answer never has more characters than its model has room for, and says what it leaves out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from antiphon.context.item_texts import tell_item
from antiphon.context.rows import Row
from antiphon.context.tool_names import flatten_name
from antiphon.context.toolbox import OfferedTool, Toolbox
from antiphon.engine.catalog import Target
from antiphon.engine.line_search import find_lines
from antiphon.engine.path_rows import PathRows
from antiphon.engine.paths import read_places
from antiphon.engine.services import Services
from antiphon.protocol.errors import AntiphonError, shorten_quoted
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.tools import FunctionTool, McpTool

_log = logging.getLogger("antiphon.engine")

#: Clients see a call of it as one of this server's tool of this name.
RECALL_SERVER: Final = "antiphon"
RECALL_TOOL: Final = "recall"
#: What the model knows it by: the name under which later rounds tell of the call.
RECALL_NAME: Final = flatten_name(RECALL_SERVER, RECALL_TOOL)

#: The longest answer, whatever the window; and its share of the window, for a token has some three characters.
ANSWER_CHARACTERS: Final = 30_000
ANSWER_SHARE: Final = 0.15
ANSWER_MIN_CHARACTERS: Final = 1_000
CHARACTERS_PER_TOKEN: Final = 3
#: Of what stands before the path that many nodes and bytes are read, the newest first.
NODES_AT_MOST: Final = 1_000
READ_BYTES_AT_MOST: Final = 64 << 20
#: Items are read in portions of this many, so that other clients need not wait for all of them.
ITEMS_AT_ONCE: Final = 128

_TAKEN: Final = (
    "tools_left_out",
    (
        f"The client's own tools hold one named '{RECALL_TOOL}', so that of this server, which fetches what a "
        "compaction left out, is not offered."
    ),
)

LoadRows = Callable[[], Awaitable[Sequence[Row]]]

_FUNCTION: Final = FunctionTool(
    name=RECALL_NAME,
    description=(
        "Fetch what was left out of this conversation when it was compacted, word for word, by the ids that are named "
        "where it was left out: one item, or all items from `id` to `to`. With `query` you get only the lines that "
        "contain it, with the lines around them. A long answer is cut, and says how to go on."
    ),
    parameters={
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "The id of an item, or of the first item of a range."},
            "to": {"type": "string", "description": "The id of the last item of a range."},
            "query": {"type": "string", "description": "Text to look for; case does not matter."},
            "offset": {"type": "integer", "description": "Where to go on in an answer that was cut."},
        },
        "required": ["id"],
        "additionalProperties": False,
    },
)


class RecallError(Exception):
    """A call that cannot be answered; its text is for the model."""


class _Arguments(msgspec.Struct):
    """What a model may ask for; null is as good as absent, and so is an empty text."""

    id: Annotated[str, Meta(min_length=1, max_length=512)]
    to: Annotated[str, Meta(max_length=512)] | None = None
    query: Annotated[str, Meta(max_length=512)] | None = None
    offset: Annotated[int, Meta(ge=0)] | None = None


_decode_arguments = msgspec.json.Decoder(_Arguments, strict=False).decode


def offer_recall(
    request: CreateRequest,
    toolbox: Toolbox,
    target: Target,
    load_rows: LoadRows,
    warnings: list[tuple[str, str]],
) -> "Recall | None":
    """The tool for a request whose window holds an opened compaction; None where it cannot be offered.

    `load_rows`: the rows of `list_recallable`, read when they are first needed. A client that restricts its tools gets
    none that it did not ask for. The toolbox is told of it: no client is handed a call of it.
    """
    if target.backend.speaks_responses:
        return None
    names = {name for tool in toolbox.offered for name in (tool.name, tool.own_name)}
    if not _may_call(request, toolbox, target):
        # The model may remember it.
        toolbox.hidden |= {RECALL_NAME} - names
        return None
    labels = {tool.server_label for tool in toolbox.hosted if isinstance(tool, McpTool)}
    taken = names | (toolbox.hidden - {RECALL_NAME})
    if {RECALL_TOOL, RECALL_NAME} & taken or RECALL_SERVER in labels:
        if _TAKEN not in warnings:
            warnings.append(_TAKEN)
        return None
    toolbox.hidden |= {RECALL_NAME}
    if toolbox.choice == "none":
        # There are no other tools.
        toolbox.choice = "auto"
    return Recall(load_rows, max_characters=limit_answer(target.window_tokens))


def _may_call(request: CreateRequest, toolbox: Toolbox, target: Target) -> bool:
    """Whether client and model leave room for one tool more."""
    if request.tool_choice != "auto" or target.profile.tools == "none":
        return False
    wants_logprobs = bool(request.top_logprobs) or "message.output_text.logprobs" in request.include
    # There a tool turns the answer into JSON, whose probabilities are not those of a text.
    return not (wants_logprobs and target.profile.tools == "schema" and not toolbox.offered)


def limit_answer(window_tokens: int | None) -> int:
    """The most characters of an answer, in a window of so many tokens (None: unknown)."""
    if window_tokens is None:
        return ANSWER_CHARACTERS
    share = int(window_tokens * ANSWER_SHARE * CHARACTERS_PER_TOKEN)
    return max(min(share, ANSWER_CHARACTERS), ANSWER_MIN_CHARACTERS)


async def list_recallable(path: PathRows, tenant: str, services: Services) -> list[Row]:
    """Every stored item of a conversation: of its path, and before it of what its compactions were made from.

    A client that holds its history itself sends a compaction alone; what that stands for is still its own, since the
    seal says so.
    """
    known = {node.id for node in path.nodes}
    sealed = {node.id for window in path.windows.values() for node in window.nodes} - known
    order = [node.id for window in path.windows.values() for node in window.nodes if node.id in sealed]
    earlier: list[list[Row]] = []
    read_bytes = 0
    for node_id in list(dict.fromkeys(order))[: -NODES_AT_MOST - 1 : -1]:
        record = await services.rounds.load(tenant, node_id)
        if record is None:
            continue
        read_bytes += len(record.input) + len(record.output)
        if read_bytes > READ_BYTES_AT_MOST:
            break
        earlier.append([Row(id=place.id, item=place.item, node=record.id) for place in read_places(record)])
    return [row for rows in reversed(earlier) for row in rows] + list(path.raw)


class Recall:
    """Answers the calls of one response."""

    def __init__(self, load_rows: LoadRows, *, max_characters: int = ANSWER_CHARACTERS) -> None:
        self._load_rows = load_rows
        self._max_characters = max_characters
        self._rows: Sequence[Row] | None = None

    @property
    def offered(self) -> OfferedTool:
        """The tool as the model is told of it."""
        return OfferedTool(
            name=RECALL_NAME,
            kind="mcp",
            function=_FUNCTION,
            own_name=RECALL_TOOL,
            server_label=RECALL_SERVER,
        )

    async def answer(self, arguments: str) -> str:
        """What a call gives; raises `RecallError` with a sentence for the model."""
        asked = _read_arguments(arguments)
        if self._rows is None:
            try:
                self._rows = await self._load_rows()
            except AntiphonError as error:
                _log.warning("what a compaction left out could not be read: %s", error.message)
                raise RecallError("What was left out cannot be read just now.") from error
        return await self._tell(_find_range(self._rows, asked.id, asked.to or asked.id), asked)

    async def _tell(self, rows: Sequence[Row], asked: _Arguments) -> str:
        """The items in words, from the offset on, as far as there is room."""
        start = asked.offset or 0
        end = start + self._max_characters
        pieces: list[str] = []
        length = 0
        for position, row in enumerate(rows):
            if position % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                await asyncio.sleep(0)
            told = tell_item(row.item)
            if asked.query:
                told = find_lines(told, asked.query)
                if not told:
                    continue
            piece = f"[{row.id}]\n{told}"
            length += len(piece) + (2 if pieces else 0)
            pieces.append(piece)
            if length > end:
                break
        whole = "\n\n".join(pieces).encode("utf-8", "replace").decode()
        if not pieces:
            return f"Nothing there contains '{shorten_quoted(asked.query or '')}'."
        if start >= len(whole):
            return f"The answer ends before the offset {start}: it has {len(whole)} characters."
        if len(whole) <= end:
            return whole[start:]
        return f"{whole[start:end]}\n[Cut here; go on with offset {end}, or look for words with query.]"


def _read_arguments(arguments: str) -> _Arguments:
    try:
        return _decode_arguments(arguments or "{}")
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise RecallError(
            "The arguments must be a JSON object with `id`, a text, and may hold `to`, `query` and `offset`."
        ) from error


def _find_range(rows: Sequence[Row], first_id: str, last_id: str) -> Sequence[Row]:
    """The rows from one id to another, both included; of several with one id the newest counts."""
    last = _find_newest(rows, last_id, len(rows))
    first = _find_newest(rows, first_id, last + 1) if last is not None else None
    if last is None or (first is None and _find_newest(rows, first_id, len(rows)) is None):
        missing = last_id if last is None else first_id
        raise RecallError(
            f"There is no item '{shorten_quoted(missing)}' in this conversation; use an id that is named in it."
        )
    if first is None:
        raise RecallError(
            f"The item '{shorten_quoted(first_id)}' stands behind '{shorten_quoted(last_id)}'; "
            "exchange `id` and `to`."
        )
    return rows[first : last + 1]


def _find_newest(rows: Sequence[Row], item_id: str, end: int) -> int | None:
    return next((at for at in range(end - 1, -1, -1) if rows[at].id == item_id), None)


def tell_failure(error: RecallError) -> dict[str, Any]:
    """The error of the call's item."""
    return {"type": "mcp_protocol_error", "code": -32602, "message": str(error)}
