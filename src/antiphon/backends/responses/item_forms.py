"""Output items and their parts with all that the API always has: what a thin server leaves out is filled in.

Pure; it knows no events. Invariant: what is there is not touched, so unknown fields and types stay as they came; but
the name and the text of a call are texts.
"""

from typing import Final

from msgspec import Raw

from antiphon.backends.responses.json_fields import Fields, is_told, read_fields, read_text, to_raw

_EMPTY_LIST: Final = Raw(b"[]")
_EMPTY_TEXT: Final = Raw(b'""')
COMPLETED: Final = to_raw("completed")
INCOMPLETE: Final = to_raw("incomplete")
IN_PROGRESS: Final = to_raw("in_progress")

#: Where the text of an item stands that has one text of its own.
TEXT_KEYS: Final = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
    "code_interpreter_call": "code",
}
#: Types that the API never shows without a status. Reasoning is not among them: servers have refused one there.
_WITH_STATUS: Final = frozenset(
    {
        "message",
        "function_call",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
    }
)
#: Members that a type always has.
_FILLED: Final[dict[str, dict[str, Raw]]] = {
    "message": {"role": to_raw("assistant"), "content": _EMPTY_LIST},
    "reasoning": {"summary": _EMPTY_LIST},
    "function_call": {"name": _EMPTY_TEXT, "arguments": _EMPTY_TEXT},
    "custom_tool_call": {"name": _EMPTY_TEXT, "input": _EMPTY_TEXT},
}
#: Calls that a client answers by their `call_id`.
_WITH_CALL_ID: Final = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
    }
)
#: Members that grow while an item is being made, and how they begin.
_GROWING: Final[dict[str, dict[str, Raw]]] = {
    "message": {"content": _EMPTY_LIST},
    "reasoning": {"summary": _EMPTY_LIST, "content": _EMPTY_LIST},
    "function_call": {"arguments": _EMPTY_TEXT},
    "custom_tool_call": {"input": _EMPTY_TEXT},
    "mcp_call": {"arguments": _EMPTY_TEXT, "output": Raw(b"null"), "error": Raw(b"null")},
    "mcp_list_tools": {"tools": _EMPTY_LIST},
    "code_interpreter_call": {"code": _EMPTY_TEXT},
    "image_generation_call": {"result": Raw(b"null")},
}
_FILLED_PARTS: Final[dict[str, dict[str, Raw]]] = {
    "output_text": {"text": _EMPTY_TEXT, "annotations": _EMPTY_LIST, "logprobs": _EMPTY_LIST},
    "refusal": {"refusal": _EMPTY_TEXT},
    "reasoning_text": {"text": _EMPTY_TEXT},
    "summary_text": {"text": _EMPTY_TEXT},
}


def read_type(fields: Fields) -> str:
    """The type of an item; one that does not say is a message."""
    return read_text(fields.get("type")) or "message"


def read_call_text(raw: Raw | None) -> str:
    """The text of an item that has one text of its own: some servers tell arguments as the object that they are."""
    told = bytes(raw) if raw is not None else b""
    return told.decode() if told.startswith((b"{", b"[")) else read_text(raw) or ""


def fill_item(fields: Fields, *, call_id: str, status: Raw) -> Fields:
    """An item with what its type always has; the same object where nothing was missing."""
    item_type = read_type(fields)
    missing: Fields = {}
    if "id" in fields and not read_text(fields["id"]):
        # No id is better than one that is none: then it is given one.
        fields = {key: value for key, value in fields.items() if key != "id"}
    if not read_text(fields.get("type")):
        missing["type"] = to_raw(item_type)
    for key, value in _FILLED.get(item_type, {}).items():
        told = fields.get(key)
        if told is None or not is_told(told):
            missing[key] = value
        elif value is _EMPTY_TEXT and read_text(told) is None:
            # A name that is no text is none.
            missing[key] = to_raw(read_call_text(told)) if key != "name" else value
    if item_type in _WITH_CALL_ID and not read_text(fields.get("call_id")):
        missing["call_id"] = to_raw(call_id)
    if item_type in _WITH_STATUS and not is_told(fields.get("status")):
        missing["status"] = status
    return {**fields, **missing} if missing else fields


def unmake_item(fields: Fields) -> Fields:
    """How an item looked when it began, of a server that shows it whole: `output_item.added`."""
    item_type = read_type(fields)
    begun = {
        key: value
        for key, value in _GROWING.get(item_type, {}).items()
        if key in fields or item_type == "message"
    }
    if is_told(fields.get("status")):
        begun["status"] = IN_PROGRESS
    # Sealed reasoning is told at the end.
    sealed = {"encrypted_content"} if item_type == "reasoning" else set()
    return {key: value for key, value in {**fields, **begun}.items() if key not in sealed}


def fill_part(part: Raw | None, kind: str) -> Fields:
    """A part with what its kind always has; `kind` counts where the part does not say."""
    fields = read_fields(part) if part is not None and bytes(part).startswith(b"{") else {}
    told = read_text(fields.get("type")) or kind
    filled = {"type": to_raw(told), **fields} if not is_told(fields.get("type")) else dict(fields)
    for key, value in _FILLED_PARTS.get(told, {}).items():
        if not is_told(filled.get(key)):
            filled[key] = value
    return filled


def get_text_key(kind: str) -> str:
    """Where the text of a part stands."""
    return "refusal" if kind == "refusal" else "text"
