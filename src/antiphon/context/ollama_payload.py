"""Ollama's readable compaction payload: JSON that anybody can write, so it is read strictly or not at all.

Pure. It knows neither who may send one nor where its items go. Invariants: what is read holds no system or developer
message, every result stands behind its call, and no field is skipped.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.protocol.content import TEXT_MAX_LENGTH
from antiphon.protocol.errors import AntiphonError, RequestError
from antiphon.protocol.item_types import ENCRYPTED_MAX_LENGTH
from antiphon.protocol.items import Item, decode_item

PAYLOAD_TYPE: Final = "ollama_compaction"
PAYLOAD_VERSION: Final = 1
#: More messages than this are not what a model chose to keep.
RETAINED_LIMIT: Final = 10_000
_CALL_ID_CHARACTERS: Final = 64
#: Names as the Responses API takes them; Ollama joins a namespace to one by a dot.
_NAME = re.compile(r"(?:(?P<namespace>[^\s\x00-\x1f]{1,256})\.)?(?P<name>[a-zA-Z0-9_-]{1,128})")
#: Says that a text that is no JSON was meant to be a payload: it was cut, or more was put behind it.
_CLAIM = re.compile(r'\s{0,64}\{[^{\[]{0,512}"ollama_compaction"')
_ROLES: Final = ("user", "assistant", "tool")
_SEARCH_NAME: Final = "tool_search"
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")


class OllamaPayloadError(AntiphonError):
    """The compaction item holds an Ollama payload that cannot be read."""


class OllamaWindow(msgspec.Struct, frozen=True):
    """What a payload holds: the summary, and the items that were kept beside it, in order."""

    summary: str
    items: list[Item]


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | None = None
    index: int | None = None


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    function: _Function
    id: str = ""


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[_Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class _Identity(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    namespace: str = ""

    @property
    def joined(self) -> str:
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class _Payload(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    version: int
    summary: str
    retained: list[_Message] | None = None
    standalone_names: dict[str, _Identity] | None = None


_decode_any = msgspec.json.Decoder().decode
_decode_payload = msgspec.json.Decoder(_Payload).decode


def decode_ollama_payload(text: str) -> OllamaWindow | None:
    """Read the `encrypted_content` of a compaction item; None where it is no payload of Ollama's at all.

    Raises `OllamaPayloadError` with what is wrong where it claims to be one and is not.
    """
    if not text[:64].lstrip().startswith("{"):
        return None
    if len(text) > ENCRYPTED_MAX_LENGTH:
        raise OllamaPayloadError(f"The Ollama payload is longer than {ENCRYPTED_MAX_LENGTH} characters.")
    try:
        fields = _decode_any(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        if _CLAIM.match(text) is None:
            return None
        raise OllamaPayloadError(
            "The Ollama payload is not one JSON object: it is cut, or more stands behind it."
        ) from None
    if not isinstance(fields, dict) or fields.get("type") != PAYLOAD_TYPE:
        return None
    if type(fields.get("version")) is not int or fields["version"] != PAYLOAD_VERSION:
        raise OllamaPayloadError(f"The Ollama payload has another version than {PAYLOAD_VERSION}.")
    try:
        payload = _decode_payload(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise OllamaPayloadError(f"The Ollama payload has a form that is not known: {error}.") from None
    return _read_payload(payload)


def _read_payload(payload: _Payload) -> OllamaWindow:
    if not payload.summary.strip():
        raise OllamaPayloadError("The Ollama payload has a blank summary.")
    if len(payload.summary) > TEXT_MAX_LENGTH:
        raise OllamaPayloadError(
            f"The summary of the Ollama payload is longer than {TEXT_MAX_LENGTH} characters."
        )
    messages = payload.retained or []
    if len(messages) > RETAINED_LIMIT:
        raise OllamaPayloadError(f"The Ollama payload has more than {RETAINED_LIMIT} retained messages.")
    names = _read_names(payload.standalone_names or {}, messages)
    reader = _Reader(names)
    for index, message in enumerate(messages):
        reader.read(index, message)
    return OllamaWindow(payload.summary, reader.items)


def _read_names(names: Mapping[str, _Identity], messages: Sequence[_Message]) -> dict[int, _Identity]:
    """The identities of results without a call, by the index of their message, each checked against it."""
    read: dict[int, _Identity] = {}
    for key, identity in names.items():
        if not _INDEX.fullmatch(key) or int(key) >= len(messages):
            raise OllamaPayloadError(f"standalone_names[{key[:16]!r}] names no retained message.")
        index = int(key)
        message = messages[index]
        if message.role != "tool" or message.tool_call_id:
            raise OllamaPayloadError(f"standalone_names[{key!r}] is for no result without a call.")
        if not identity.name.strip() or identity.joined != (message.tool_name or ""):
            raise OllamaPayloadError(f"standalone_names[{key!r}] is another name than its message has.")
        read[index] = identity
    return read


class _Reader:
    """Turns the retained messages into items, one after the other."""

    def __init__(self, names: Mapping[int, _Identity]) -> None:
        self._names = names
        self.items: list[Item] = []
        self._where = "retained"
        #: The type of the output for every call that was made; None once it was given.
        self._open_calls: dict[str, str | None] = {}

    def read(self, index: int, message: _Message) -> None:
        where = self._where = f"retained[{index}]"
        if message.role not in _ROLES:
            raise OllamaPayloadError(
                f"{where} has the role {message.role[:32]!r}; only {', '.join(_ROLES)} may stand there."
            )
        _check_fields(message, where)
        if message.thinking:
            summary = [{"type": "summary_text", "text": message.thinking}]
            self._add({"type": "reasoning", "summary": summary})
        images = [
            _make_image(image, f"{where}.images[{each}]") for each, image in enumerate(message.images or [])
        ]
        if message.role == "tool":
            self._read_result(index, message, images)
        elif message.content or images or not (message.tool_calls or message.thinking):
            self._add({"type": "message", "role": message.role, "content": _make_content(message, images)})
        for call in message.tool_calls or []:
            self._read_call(call, where)

    def _read_call(self, call: _Call, where: str) -> None:
        name = _NAME.fullmatch(call.function.name)
        if name is None or not 0 < len(call.id) <= _CALL_ID_CHARACTERS:
            raise OllamaPayloadError(f"{where} has a call without a proper name or id.")
        if call.id in self._open_calls:
            raise OllamaPayloadError(f"{where} has a call with an id that an earlier one has.")
        arguments = call.function.arguments or {}
        if call.function.name == _SEARCH_NAME:
            self._open_calls[call.id] = "tool_search_output"
            self._add(
                {
                    "type": "tool_search_call",
                    "call_id": call.id,
                    "execution": "client",
                    "arguments": arguments,
                }
            )
            return
        self._open_calls[call.id] = "function_call_output"
        fields = {"type": "function_call", "call_id": call.id, "name": name["name"]}
        if name["namespace"]:
            fields["namespace"] = name["namespace"]
        self._add({**fields, "arguments": msgspec.json.encode(arguments).decode()})

    def _read_result(self, index: int, message: _Message, images: list[dict[str, Any]]) -> None:
        where, call_id = f"retained[{index}]", message.tool_call_id or ""
        if not call_id:
            self._read_standalone(index, message, images)
            return
        kind = self._open_calls.get(call_id)
        if kind is None:
            why = (
                "a second result for a call"
                if call_id in self._open_calls
                else "a result without its call before it"
            )
            raise OllamaPayloadError(f"{where} is {why}.")
        self._open_calls[call_id] = None
        if kind == "tool_search_output":
            tools = _read_tools(message, images, where)
            self._add({"type": kind, "call_id": call_id, "execution": "client", "tools": tools})
            return
        output = _make_parts(message.content or "", "input_text", images) if images else message.content or ""
        self._add({"type": kind, "call_id": call_id, "output": output})

    def _read_standalone(self, index: int, message: _Message, images: list[dict[str, Any]]) -> None:
        """A result that no call asked for: the API has no such item, so a message says what it is."""
        identity = self._names.get(index)
        if identity is None:
            raise OllamaPayloadError(f"retained[{index}] is a result without a call and without a name.")
        head = f"[Result of {identity.joined}, which came without a call:]\n"
        content = _make_parts(head + (message.content or ""), "input_text", images)
        self._add({"type": "message", "role": "user", "content": content})

    def _add(self, fields: dict[str, Any]) -> None:
        try:
            self.items.append(decode_item(msgspec.json.encode(fields), self._where))
        except RequestError as error:
            raise OllamaPayloadError(f"{self._where} makes no proper item: {error.message}") from None


def _check_fields(message: _Message, where: str) -> None:
    """Each role has its own fields; another's would be lost."""
    if message.role != "assistant" and (message.tool_calls or message.thinking):
        raise OllamaPayloadError(f"{where} has the role {message.role!r}, and calls or thinking.")
    if message.role != "tool" and (message.tool_call_id or message.tool_name):
        raise OllamaPayloadError(f"{where} has the role {message.role!r}, and fields of a result.")
    if message.role == "assistant" and message.images:
        raise OllamaPayloadError(f"{where} has the role 'assistant', and images.")
    if max(len(message.content or ""), len(message.thinking or "")) > TEXT_MAX_LENGTH:
        raise OllamaPayloadError(f"{where} is longer than {TEXT_MAX_LENGTH} characters.")


def _make_content(message: _Message, images: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    text = message.content or ""
    if message.role == "assistant":
        return [{"type": "output_text", "text": text, "annotations": []}]
    return _make_parts(text, "input_text", images) if images else text


def _make_parts(text: str, kind: str, images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*([{"type": kind, "text": text}] if text else []), *images]


def _make_image(encoded: str, where: str) -> dict[str, Any]:
    """An image as the part that the API has for it; its bytes say of which type it is."""
    try:
        data = base64.b64decode(encoded.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise OllamaPayloadError(f"{where} is no base64.") from None
    media_type = _sniff(data)
    if media_type is None:
        raise OllamaPayloadError(f"{where} is no JPEG, PNG or WebP image.")
    url = f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _sniff(data: bytes) -> str | None:
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _read_tools(message: _Message, images: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """The tools that a search found: JSON text, a list of objects."""
    try:
        tools = _decode_any(message.content or "[]")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        tools = None
    if images or not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise OllamaPayloadError(f"{where} is the result of a tool search, and no list of tools.")
    return tools
