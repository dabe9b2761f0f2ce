"""Items: decoding by type, and the questions that everyone asks of an item.

An item is the bytes that arrived beside a typed view of them. This module knows nothing of where items
are stored or sent. Invariant: `raw` is never rewritten; what is unknown in it is kept.
"""

from typing import Any, Final, get_args

import msgspec

from antiphon.protocol import checks, content
from antiphon.protocol.content import INPUT_PART_TYPES, OUTPUT_PART_TYPES
from antiphon.protocol.errors import RequestError
from antiphon.protocol.hosted_items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CodeInterpreterCall,
    ComputerCall,
    ComputerCallOutput,
    FileSearchCall,
    ImageGenerationCall,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    ShellCall,
    ShellCallOutput,
    WebSearchCall,
)
from antiphon.protocol.item_forms import derive_item_id, normalise_item
from antiphon.protocol.item_kinds import (
    ID_PREFIXES,
    ITEM_TYPES,
    STRUCTS,
    TYPE_NAMES,
    Item,
    ItemValue,
    KnownItem,
)
from antiphon.protocol.item_types import (
    AdditionalTools,
    AgentMessage,
    Compaction,
    CompactionSummary,
    CompactionTrigger,
    ConfigurationUpdate,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    ItemReference,
    Message,
    Program,
    ProgramOutput,
    Reasoning,
    Role,
    ToolSearchCall,
    ToolSearchOutput,
    TypedItem,
    UnknownItem,
)
from antiphon.protocol.loose_views import build_view

__all__ = [
    "CALL_OUTPUT_TYPES",
    "ID_PREFIXES",
    "ITEM_TYPES",
    "ROLES",
    "STRUCTS",
    "AdditionalTools",
    "AgentMessage",
    "ApplyPatchCall",
    "ApplyPatchCallOutput",
    "CodeInterpreterCall",
    "Compaction",
    "CompactionSummary",
    "CompactionTrigger",
    "ComputerCall",
    "ComputerCallOutput",
    "ConfigurationUpdate",
    "CustomToolCall",
    "CustomToolCallOutput",
    "FileSearchCall",
    "FunctionCall",
    "FunctionCallOutput",
    "ImageGenerationCall",
    "Item",
    "ItemReference",
    "ItemValue",
    "KnownItem",
    "LocalShellCall",
    "LocalShellCallOutput",
    "McpApprovalRequest",
    "McpApprovalResponse",
    "McpCall",
    "McpListTools",
    "Message",
    "Program",
    "ProgramOutput",
    "Reasoning",
    "ShellCall",
    "ShellCallOutput",
    "ToolSearchCall",
    "ToolSearchOutput",
    "TypedItem",
    "UnknownItem",
    "WebSearchCall",
    "check_known",
    "decode_item",
    "decode_items",
    "decode_stored_item",
    "derive_item_id",
    "encode_item",
    "get_call_id",
    "get_item_id",
    "is_call",
    "is_call_output",
    "make_user_message",
    "message_text",
    "normalise_item",
]

#: Calls that the client must answer, and the type of the answer.
CALL_OUTPUT_TYPES: Final[dict[str, str]] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}
_OUTPUT_TYPES = frozenset(CALL_OUTPUT_TYPES.values())


class _Peek(msgspec.Struct, gc=False):
    """The keys that tell what an object without a type is."""

    type: Any = None
    role: Any = None
    id: Any = None


_decode_known = msgspec.json.Decoder(KnownItem).decode
_decode_peek = msgspec.json.Decoder(_Peek).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_DECODERS = {name: msgspec.json.Decoder(kind).decode for name, kind in STRUCTS.items()}

ROLES: Final[tuple[str, ...]] = get_args(Role)
#: Longest id of an item of an unknown type under which it is found again.
_ID_CHARACTERS = 64
_INPUT_PARTS = frozenset(
    {
        content.InputText,
        content.InputImage,
        content.InputFile,
        content.InputAudio,
        content.InputVideo,
    }
)
_OUTPUT_PARTS = frozenset({content.OutputText, content.Refusal})


# Decoding


def decode_items(raw: bytes | msgspec.Raw, where: str = "input") -> list[Item]:
    """Decode an array of items that a client sent; raises `RequestError` at the first bad one."""
    try:
        raws = _decode_array(raw)
    except msgspec.ValidationError as error:
        checks.refuse(raw, list[dict[str, Any]], where, error)
    items = []
    for index, member in enumerate(raws):
        path = f"{where}[{index}]"
        checks.check_value(member, path)
        items.append(decode_item(member, path))
    return items


def decode_item(raw: bytes | msgspec.Raw, where: str) -> Item:
    """Decode one item that a client sent, found at the path `where` (`input[0]`).

    An item of a type that we do not know is kept as it came; `check_known` refuses it where nobody else knows
    it either. Raises `RequestError` with the API's code, param and text for whatever else is wrong with it.
    """
    try:
        value: ItemValue = _decode_known(raw)
    except (msgspec.ValidationError, RecursionError):
        value = _decode_odd(raw, where)
    if isinstance(value, UnknownItem):
        return Item(value.type, bytes(raw), value)
    kind = type(value)
    item_type = TYPE_NAMES[kind]
    if kind is Message:
        _check_message(value, where)  # type: ignore[arg-type]
    elif isinstance(value, AdditionalTools | ToolSearchOutput):
        _refuse_credentials(value.tools, where)
    if value.id is not None:
        _check_id(value.id, item_type, where)
    return Item(item_type, bytes(raw), value)


def check_known(item: Item, where: str) -> None:
    """Raise for an item of an unknown type, with the types that are known."""
    if isinstance(item.value, UnknownItem):
        raise checks.invalid_value(where, item.type, ITEM_TYPES)


def _decode_odd(raw: bytes | msgspec.Raw, where: str) -> ItemValue:
    """Decode what is not plainly a tagged item: one without a type, of an unknown one, or one to be refused."""
    item_type = _guess_type(raw, where)
    kind = STRUCTS.get(item_type)
    if kind is None:
        return _make_unknown(item_type, raw)
    if kind is Message:
        _check_role(_decode_peek(raw).role, where)
    try:
        return _DECODERS[item_type](_drop_null_type(raw))  # type: ignore[return-value]
    except (msgspec.ValidationError, RecursionError) as error:
        checks.refuse(_drop_null_type(raw), kind, where, error)


def _guess_type(raw: bytes | msgspec.Raw, where: str) -> str:
    try:
        peek = _decode_peek(raw)
    except (msgspec.ValidationError, RecursionError) as error:
        checks.refuse(raw, dict[str, Any], where, error)
    if peek.type is None:
        if peek.role is not None:
            return "message"
        if peek.id is not None:
            return "item_reference"
        raise checks.missing_parameter(f"{where}.type")
    if not isinstance(peek.type, str):
        raise checks.invalid_type(f"{where}.type", "a string", peek.type)
    return peek.type


def _drop_null_type(raw: bytes | msgspec.Raw) -> bytes | msgspec.Raw:
    fields = _decode_raws(raw)
    if "type" not in fields or bytes(fields["type"]) != b"null":
        return raw
    del fields["type"]
    return msgspec.json.encode(fields)


def _check_role(role: Any, where: str) -> None:
    """The API names the whole item, not its role, when the role is none that it knows."""
    if isinstance(role, str) and role not in ROLES:
        raise checks.invalid_value(where, role, ROLES)


def _check_message(message: Message, where: str) -> None:
    assistant = message.role == "assistant"
    if message.phase is not None and not assistant:
        raise checks.unknown_parameter(where, "phase", (), ())
    if isinstance(message.content, str):
        return
    allowed = _OUTPUT_PARTS if assistant else _INPUT_PARTS
    for index, part in enumerate(message.content):
        if type(part) not in allowed:
            supported = OUTPUT_PART_TYPES if assistant else INPUT_PART_TYPES
            path = f"{where}.content[{index}]"
            raise checks.invalid_value(path, content.get_part_type(part), supported)


def _refuse_credentials(tools: list[dict[str, Any]], where: str) -> None:
    """Items are kept as they came and listed; so the secrets of an MCP server do not belong into one."""
    for index, tool in enumerate(tools):
        for name in ("authorization", "headers") if tool.get("type") == "mcp" else ():
            if tool.get(name):
                path = f"{where}.tools[{index}].{name}"
                raise RequestError(
                    f"Invalid '{path}': items are stored as they came, so they must hold no credentials. Declare "
                    "the MCP server in 'tools', whose credentials are never stored.",
                    param=path,
                    code="invalid_value",
                )


def _check_id(item_id: str, item_type: str, where: str) -> None:
    prefix = ID_PREFIXES.get(item_type)
    if prefix is not None and not item_id.startswith(prefix):
        raise checks.invalid_prefix(f"{where}.id", item_id, prefix)


def decode_stored_item(raw: bytes | msgspec.Raw) -> Item:
    """Decode an item from bytes that were accepted before, without checks.

    The view of one that breaks a rule of the input holds nothing of another type than its field declares. An item of
    an unknown type, or one that cannot be read so, gets the value `UnknownItem`.
    """
    stored = bytes(raw)
    try:
        value: ItemValue = _decode_known(stored)
        return Item(TYPE_NAMES[type(value)], stored, value)
    except (msgspec.ValidationError, RecursionError):
        pass
    try:
        item_type = _guess_type(stored, "item")
        decoder = _DECODERS.get(item_type)
        value = decoder(_drop_null_type(stored)) if decoder else _make_unknown(item_type, stored)  # type: ignore[assignment]
    except (msgspec.ValidationError, RequestError, RecursionError):
        item_type = _peek_type(stored)
        value = _build_loosely(item_type, stored) or _make_unknown(item_type, stored)
    return Item(item_type, stored, value)


def _make_unknown(item_type: str, raw: bytes | msgspec.Raw) -> UnknownItem:
    try:
        found = _decode_peek(raw).id
    except (msgspec.ValidationError, RecursionError):
        found = None
    is_id = isinstance(found, str) and 0 < len(found) <= _ID_CHARACTERS
    return UnknownItem(item_type, found if is_id else None)


def _build_loosely(item_type: str, stored: bytes) -> KnownItem | None:
    """The typed view of an item that breaks a rule for input, such as a length: a model may have made it."""
    struct = STRUCTS.get(item_type)
    try:
        fields = msgspec.json.decode(stored)
    except RecursionError:
        return None
    if struct is None or not isinstance(fields, dict):
        return None
    return build_view(struct, fields)  # type: ignore[return-value]


def _peek_type(raw: bytes) -> str:
    try:
        found = _decode_peek(raw).type
    except (msgspec.ValidationError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def encode_item(value: TypedItem) -> Item:
    """An item that we made ourselves: its raw bytes are the encoding of its value."""
    return Item(TYPE_NAMES[type(value)], msgspec.json.encode(value), value)  # type: ignore[arg-type]


def make_user_message(text: str) -> Item:
    """The item that a string input stands for: `{"role":"user","content":text}`."""
    raw = msgspec.json.encode({"role": "user", "content": text})
    return Item("message", raw, Message(role="user", content=text))


# Questions


def get_item_id(item: Item) -> str | None:
    """The id that the item bears, if any."""
    return getattr(item.value, "id", None)


def get_call_id(item: Item) -> str | None:
    """The id that pairs a call with its output; None where the item has none."""
    call_id: str | None = getattr(item.value, "call_id", None)
    if call_id is None and isinstance(item.value, LocalShellCallOutput):
        # Older clients name the call in the output's own id.
        return item.value.id
    return call_id


def is_call(item: Item) -> bool:
    """Whether the item is a call that the client must answer with an output item."""
    if isinstance(item.value, ToolSearchCall):
        return item.value.execution != "server"
    return item.type in CALL_OUTPUT_TYPES


def is_call_output(item: Item) -> bool:
    """Whether the item is a client's answer to a call."""
    if isinstance(item.value, ToolSearchOutput):
        return item.value.execution != "server"
    return item.type in _OUTPUT_TYPES


def message_text(message: Message) -> str:
    """The text of a message, its text parts joined; images, files and refusals are left out."""
    if isinstance(message.content, str):
        return message.content
    return "".join(
        part.text for part in message.content if isinstance(part, (content.InputText, content.OutputText))
    )
