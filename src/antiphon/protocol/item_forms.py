"""The normal form of an item: what list views show, and the id of an item that came without one.

Works on the raw bytes, so that unknown fields survive, and never decodes their values. Invariant: the same
item, node and position always give the same bytes; nothing is emitted as null that the API leaves out.
"""

from typing import Final, TypeAlias

import msgspec

from antiphon.protocol.item_kinds import ID_PREFIXES, Item
from antiphon.protocol.item_types import Message, UnknownItem

#: Types whose items bear a status.
_WITH_STATUS: Final = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "tool_search_call",
        "tool_search_output",
        "program_output",
        "file_search_call",
        "web_search_call",
        "computer_call",
        "computer_call_output",
        "code_interpreter_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "mcp_call",
    }
)
#: Prefixes of derived ids where the API documents none.
_OWN_PREFIXES: Final[dict[str, str]] = {
    "additional_tools": "at",
    "agent_message": "amsg",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "compaction_trigger": "cmpt",
    "computer_call_output": "cuo",
    "configuration_update": "cu",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "mcp_approval_response": "mcpa",
    "program": "prog",
    "program_output": "progo",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
}
#: Keys that the list form always has, where the input form may leave them out.
_FILLED: Final[dict[str, dict[str, msgspec.Raw]]] = {
    "computer_call": {"pending_safety_checks": msgspec.Raw(b"[]")},
    "tool_search_call": {"execution": msgspec.Raw(b'"client"')},
    "tool_search_output": {"execution": msgspec.Raw(b'"client"')},
    "additional_tools": {"role": msgspec.Raw(b'"developer"')},
}
_FILLED_PARTS: Final[dict[bytes, dict[str, msgspec.Raw]]] = {
    b'"input_image"': {"detail": msgspec.Raw(b'"auto"')},
    b'"output_text"': {"annotations": msgspec.Raw(b"[]"), "logprobs": msgspec.Raw(b"[]")},
}
_NULL: Final = b"null"
_Part: TypeAlias = dict[str, msgspec.Raw] | msgspec.Raw
#: Types whose `output` may be a list of content parts; elsewhere that key is the client's own.
_WITH_OUTPUT_PARTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})

_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.encode


def derive_item_id(item_type: str, node_id: str, position: int) -> str:
    """The id of an item that came without one: `("message", "resp_ab12", 3)` -> `"msg_ab120003"`.

    Input comes first in a node's positions, then output.
    """
    prefix = ID_PREFIXES.get(item_type) or _OWN_PREFIXES.get(item_type, "item")
    return f"{prefix}_{node_id.partition('_')[2]}{position:04x}"


def normalise_item(item: Item, item_id: str) -> bytes:
    """The normal form of an item as JSON, under the id it bears or else `item_id`.

    Type and status are told, string content is one part, parts have the keys that the API always sends;
    nulls on optional fields are left out, unknown fields are kept.
    """
    fields = _decode_raws(item.raw)
    _drop_nulls(fields, item)
    item_type = "compaction" if item.type == "compaction_summary" else item.type
    form: dict[str, msgspec.Raw | str | list[_Part]] = {
        "id": fields.pop("id", item_id),
        "type": item_type,
    }
    fields.pop("type", None)
    form.update(fields)
    for key, value in _FILLED.get(item_type, {}).items():
        form.setdefault(key, value)
    if item_type in _WITH_STATUS:
        form.setdefault("status", "completed")
    if isinstance(item.value, Message):
        form["content"] = _expand_content(fields["content"], assistant=item.value.role == "assistant")
    elif item_type in _WITH_OUTPUT_PARTS and bytes(fields.get("output", b"")).startswith(b"["):
        form["output"] = _fill_parts(fields["output"])
    return _encode(form)


def _drop_nulls(fields: dict[str, msgspec.Raw], item: Item) -> None:
    """Null on an optional field equals absent; what a null means in an unknown field we cannot know."""
    if isinstance(item.value, UnknownItem):
        optional = {"id", "status", "phase", "encrypted_content", "created_by"}
    else:
        optional = set(item.value.__struct_encode_fields__)
    nulls = [name for name, value in fields.items() if name in optional and bytes(value) == _NULL]
    for name in nulls:
        del fields[name]


def _expand_content(raw: msgspec.Raw, *, assistant: bool) -> list[_Part]:
    if bytes(raw).startswith(b'"'):
        part_type = msgspec.Raw(b'"output_text"' if assistant else b'"input_text"')
        return [_fill_part({"type": part_type, "text": raw})]
    return _fill_parts(raw)


def _fill_parts(raw: msgspec.Raw) -> list[_Part]:
    """Parts with the keys that the API always sends; what is no object stays what it is."""
    return [
        _fill_part(_decode_raws(part)) if bytes(part).startswith(b"{") else part
        for part in _decode_parts(raw)
    ]


def _fill_part(part: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """A part with the keys that the API always sends."""
    for key, value in _FILLED_PARTS.get(bytes(part.get("type", _NULL)), {}).items():
        if bytes(part.get(key, _NULL)) == _NULL:
            part[key] = value
    return {key: value for key, value in part.items() if bytes(value) != _NULL}
