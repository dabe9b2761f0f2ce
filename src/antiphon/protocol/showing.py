"""What of a stored item a client is shown: a few item types hold more than the API tells unless it is asked.

It knows nothing of where items are stored or sent. Invariant: the bytes are the stored ones wherever nothing has
to be left out, and of what is shown nothing is changed.
"""

from collections.abc import Collection
from typing import Final

import msgspec

RESULTS: Final = "web_search_call.results"
ENCRYPTED: Final = "reasoning.encrypted_content"
SOURCES: Final = "web_search_call.action.sources"

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.encode


def show_item(raw: bytes, item_type: str, include: Collection[str]) -> bytes:
    """The item as a client sees it who asked for `include`; `raw` itself for nearly every type."""
    if item_type == "web_search_call":
        return _show_search(raw, include)
    if item_type == "reasoning":
        # A server behind us is always asked for it, so that it can be given back to it later.
        return (
            raw
            if ENCRYPTED in include or b'"encrypted_content"' not in raw
            else _drop(raw, "encrypted_content")
        )
    if item_type == "mcp_list_tools":
        return _drop(raw, "allowed_tools")
    if item_type == "mcp_approval_request":
        return _drop(raw, "server_url")
    return raw


def _show_search(raw: bytes, include: Collection[str]) -> bytes:
    """Hits and sources are shown on request; why a search failed is told to the model alone."""
    hidden = ("error",) if RESULTS in include else ("error", "results")
    shown = _drop(raw, *hidden)
    if SOURCES in include or b'"sources"' not in shown:
        return shown
    fields = _decode(shown)
    action = bytes(fields.get("action", b""))
    slim = _drop(action, "sources") if action.startswith(b"{") else action
    if slim is action:
        return shown
    fields["action"] = msgspec.Raw(slim)
    return _encode(fields)


def _drop(raw: bytes, *keys: str) -> bytes:
    fields = _decode(raw)
    found = [key for key in keys if key in fields]
    for key in found:
        del fields[key]
    return _encode(fields) if found else raw
