"""What the scripted model sees of a request, and how it counts it.

Counting, exact and documented: a token is a run of word characters or one other visible character. Each
message, call, output and tool costs 4 tokens beside its text, an image 85, the answer's opening 3. Ids,
status and keys cost nothing, nor does earlier reasoning, which is not read again, nor do items that only
bring tools or settings; so a continued window and the same history sent in full count the same.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from antiphon.backends.interface import Ask
from antiphon.context import flatten_name, lower_call, lower_message, lower_output
from antiphon.protocol.content import ToolOutputPart
from antiphon.protocol.items import decode_stored_item

MESSAGE_TOKENS = 4
IMAGE_TOKENS = 85
OPENING_TOKENS = 3

TOKEN = re.compile(r"\w+|[^\w\s]")

PieceKind: TypeAlias = Literal["user", "system", "assistant", "call", "output", "other"]

_ROLES: dict[str, PieceKind] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
#: Keys that an item gains or loses between its first sending and its replay.
_UNCOUNTED = frozenset({"id", "status", "created_by"})
#: Items that say nothing themselves.
SILENT = frozenset({"additional_tools", "configuration_update", "mcp_list_tools"})
_MODEL_MADE: frozenset[PieceKind] = frozenset({"assistant", "call"})


class Piece(NamedTuple):
    """One item as the scripted model reads it; `call_id` pairs calls and outputs."""

    kind: PieceKind
    text: str
    tokens: int
    name: str = ""
    call_id: str = ""


class Window(msgspec.Struct, frozen=True):
    """Everything that one request shows to the model, system text first."""

    pieces: tuple[Piece, ...]
    tokens: int

    def last_user_text(self) -> str:
        """The newest user message; empty when there is none."""
        return next((piece.text for piece in reversed(self.pieces) if piece.kind == "user"), "")

    def list_told(self) -> list[str]:
        """What the model was told, oldest first: system and user texts."""
        return [piece.text for piece in self.pieces if piece.kind in ("system", "user")]

    def count_rounds(self) -> int:
        """How often the model has answered: runs of messages and calls that it made."""
        made = [piece.kind in _MODEL_MADE for piece in self.pieces]
        return sum(now and not before for before, now in zip([False, *made], made, strict=False))

    def list_new_outputs(self) -> list[Piece]:
        """The tool outputs at the end of the window, in order."""
        outputs: list[Piece] = []
        for piece in reversed(self.pieces):
            if piece.kind != "output":
                break
            outputs.append(piece)
        return outputs[::-1]

    def find_call(self, call_id: str) -> Piece | None:
        """The call with this id."""
        return next((p for p in self.pieces if p.kind == "call" and p.call_id == call_id), None)


def read_window(ask: Ask) -> Window:
    """The window of an ask, counted."""
    pieces = [_read_message({"role": "system", "content": ask.system})] if ask.system else []
    transcript = b",".join(piece for piece in ask.transcript if len(piece))
    for item in msgspec.json.decode(b"[" + transcript + b"]", type=list[dict[str, Any]]):
        pieces += _read_item(item)
    tools = 0 if ask.tool_choice == "none" else sum(map(_count_tool, ask.tools))
    return Window(tuple(pieces), OPENING_TOKENS + tools + sum(piece.tokens for piece in pieces))


def count_text(text: str) -> int:
    """The tokens of a text: "a b, c" -> 4."""
    return sum(1 for _ in TOKEN.finditer(text))


def _count_tool(tool: Any) -> int:
    parameters = msgspec.json.encode(tool.parameters or {}).decode()
    return MESSAGE_TOKENS + sum(map(count_text, (tool.name, tool.description or "", parameters)))


def _read_item(item: dict[str, Any]) -> list[Piece]:
    """Nothing for what the model does not read; two pieces for a call that holds its own result."""
    kind = item.get("type") or "message"
    call_id = item.get("call_id") or ""
    if kind == "reasoning":
        return []
    if kind == "message":
        return [_read_message(item)]
    if kind in ("function_call", "custom_tool_call") and not item.get("async"):
        name = flatten_name(item.get("namespace"), item["name"])
        return [_make_call(name, item.get("arguments") or item.get("input") or "", call_id)]
    if kind in ("function_call_output", "custom_tool_call_output"):
        text, images = _read_content(item.get("output"))
        return [Piece("output", text, _count(text, images), "", call_id)]
    return _read_lowered(item, kind)


def _read_lowered(item: dict[str, Any], kind: str) -> list[Piece]:
    """Calls, outputs and messages of all other kinds, in the words that every chat model is told."""
    decoded = decode_stored_item(msgspec.json.encode(item))
    call, output, message = lower_call(decoded), lower_output(decoded), lower_message(decoded)
    pieces = []
    if call is not None:
        pieces.append(_make_call(call.name, call.arguments, call.call_id))
    if output is not None:
        text, images = _read_parts(output.content)
        pieces.append(Piece("output", text, _count(text, images), "", output.call_id))
    if message is not None:
        text, images = _read_parts(message.content)
        pieces.append(Piece("user", text, _count(text, images)))
    if pieces or kind in SILENT or kind == "mcp_approval_response":
        return pieces
    counted = {key: value for key, value in item.items() if key not in _UNCOUNTED and value is not None}
    text = msgspec.json.encode(counted).decode()
    return [Piece("other", text, _count(text, 0))]


def _make_call(name: str, text: str, call_id: str) -> Piece:
    return Piece("call", text, MESSAGE_TOKENS + count_text(name) + count_text(text), name, call_id)


def _read_parts(content: str | Sequence[ToolOutputPart]) -> tuple[str, int]:
    return _read_content(content if isinstance(content, str) else msgspec.to_builtins(list(content)))


def _read_message(item: dict[str, Any]) -> Piece:
    text, images = _read_content(item.get("content"))
    return Piece(_ROLES.get(item.get("role", ""), "other"), text, _count(text, images))


def _count(text: str, images: int) -> int:
    return MESSAGE_TOKENS + count_text(text) + images * IMAGE_TOKENS


def _read_content(content: Any) -> tuple[str, int]:
    """A string or parts -> the text, and the number of images and files."""
    if not isinstance(content, list):
        return content or "", 0
    texts = [part.get("text") or part.get("refusal") or "" for part in content]
    return "\n".join(filter(None, texts)), sum(1 for _ in _find_blind_parts(content))


def _find_blind_parts(parts: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return (part for part in parts if str(part.get("type")) in ("input_image", "input_file", "input_audio"))
