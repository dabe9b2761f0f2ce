"""What of a stored item a client is shown."""

import json
from typing import Any

import pytest

from antiphon.protocol.showing import show_item

SEARCH = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "x", "sources": [{"type": "url", "url": "https://a.no"}]},
    "results": [{"url": "https://a.no", "title": "A", "snippet": "a"}],
    "error": "why",
    "unknown": {"kept": 1.50},
}
SLIM = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "x"},
    "unknown": {"kept": 1.50},
}


def show(item: dict[str, Any], *include: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(show_item(json.dumps(item).encode(), item["type"], include))
    return shown


@pytest.mark.parametrize(
    ("include", "more"),
    [
        ((), {}),
        (("web_search_call.results",), {"results": SEARCH["results"]}),
        (("web_search_call.action.sources",), {"action": SEARCH["action"]}),
        (
            ("web_search_call.results", "web_search_call.action.sources"),
            {"results": SEARCH["results"], "action": SEARCH["action"]},
        ),
    ],
)
def test_hits_and_sources_of_a_search_are_shown_on_request(
    include: tuple[str, ...], more: dict[str, Any]
) -> None:
    """Responses API, `include`: `web_search_call.results`, `web_search_call.action.sources`."""
    assert show(SEARCH, *include) == {**SLIM, **more}


def test_for_which_tools_a_listing_was_made_is_not_shown() -> None:
    """Ours: the key tells later rounds whether the listing still holds."""
    listing = {"type": "mcp_list_tools", "server_label": "a", "tools": []}
    assert show({**listing, "allowed_tools": ["b"]}) == listing


def test_for_which_server_an_approval_was_asked_is_not_shown() -> None:
    """Ours: the key binds the approval to the server."""
    asked = {"type": "mcp_approval_request", "server_label": "a", "name": "b", "arguments": "{}"}
    assert show({**asked, "server_url": "https://a.no/mcp"}) == asked


@pytest.mark.parametrize(
    ("raw", "item_type"),
    [
        (b'{"type":"message", "results":[1], "error": 2 }', "message"),
        (b'{ "type":"web_search_call","action":{"type":"search"} }', "web_search_call"),
        (b'{ "type":"web_search_call","action":null }', "web_search_call"),
        (b'{ "type":"web_search_call","note":"\\"sources\\"" }', "web_search_call"),
        (b'{"type":"mcp_list_tools" ,"tools":[]}', "mcp_list_tools"),
        (b'{"type":"mcp_call","error":{"a":1}}', "mcp_call"),
    ],
)
def test_where_nothing_is_left_out_the_bytes_are_the_stored_ones(raw: bytes, item_type: str) -> None:
    """Ours: raw bytes are kept."""
    assert show_item(raw, item_type, ()) is raw
