"""openai-node before a server whose model server speaks Responses: what is passed on must fit, too."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import serve_upstream
from tests.clients.installed import find_node
from tests.clients.node import run_node_tests
from tests.fake_upstream import MODEL, Reply, Request, make_event, make_response_stream
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}
#: Kinds of items that only a server that speaks Responses makes, by the prefixes of their ids.
PASSED_ON = ("rs", "fs", "ci", "ig", "msg")
ITEMS: dict[str, dict[str, Any]] = {
    "rs": {
        "type": "reasoning",
        "id": "rs_up",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Let me see."}],
    },
    "fs": {
        "type": "file_search_call",
        "id": "fs_up",
        "status": "completed",
        "queries": ["fjords"],
        "results": None,
    },
    "ci": {
        "type": "code_interpreter_call",
        "id": "ci_up",
        "status": "completed",
        "code": "print(1)",
        "container_id": "cntr_1",
        "outputs": None,
    },
    "ig": {"type": "image_generation_call", "id": "ig_up", "status": "completed", "result": "aGk="},
    "msg": {
        "type": "message",
        "id": "msg_up",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}],
    },
}
BEGUN: dict[str, dict[str, Any]] = {
    "rs": {"content": []},
    "fs": {"status": "in_progress"},
    "ci": {"status": "in_progress", "code": ""},
    "ig": {"status": "in_progress", "result": None},
    "msg": {"status": "in_progress", "content": []},
}
THOUGHT, SAID = ITEMS["rs"]["content"][0], ITEMS["msg"]["content"][0]
INSIDE: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "rs": [
        ("response.content_part.added", {"content_index": 0, "part": {**THOUGHT, "text": ""}}),
        ("response.reasoning_text.delta", {"content_index": 0, "delta": "Let me see."}),
        ("response.reasoning_text.done", {"content_index": 0, "text": "Let me see."}),
        ("response.content_part.done", {"content_index": 0, "part": THOUGHT}),
    ],
    "fs": [(f"response.file_search_call.{name}", {}) for name in ("in_progress", "searching", "completed")],
    "ci": [
        ("response.code_interpreter_call.in_progress", {}),
        ("response.code_interpreter_call_code.delta", {"delta": "print(1)"}),
        ("response.code_interpreter_call_code.done", {"code": "print(1)"}),
        ("response.code_interpreter_call.interpreting", {}),
        ("response.code_interpreter_call.completed", {}),
    ],
    "ig": [
        ("response.image_generation_call.in_progress", {}),
        ("response.image_generation_call.generating", {}),
        (
            "response.image_generation_call.partial_image",
            {"partial_image_index": 0, "partial_image_b64": "aGk="},
        ),
        ("response.image_generation_call.completed", {}),
    ],
    "msg": [
        ("response.content_part.added", {"content_index": 0, "part": {**SAID, "text": ""}}),
        ("response.output_text.delta", {"content_index": 0, "delta": "Done.", "logprobs": []}),
        ("response.output_text.done", {"content_index": 0, "text": "Done.", "logprobs": []}),
        ("response.content_part.done", {"content_index": 0, "part": SAID}),
    ],
}


def make_part(kind: str, **fields: Any) -> dict[str, Any]:
    return {"item_id": f"{kind}_up", "output_index": PASSED_ON.index(kind), **fields}


def answer_in_kind(_: Request) -> Reply:
    """A server that speaks Responses makes an item of each kind."""
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": {"id": "resp_up", "status": "in_progress"}})
    ]
    for index, kind in enumerate(PASSED_ON):
        place = {"output_index": index}
        events.append(("response.output_item.added", {**place, "item": {**ITEMS[kind], **BEGUN[kind]}}))
        events += [(name, make_part(kind, **fields)) for name, fields in INSIDE[kind]]
        events.append(("response.output_item.done", {**place, "item": ITEMS[kind]}))
    whole = {"id": "resp_up", "object": "response", "status": "completed", "usage": USAGE}
    events.append(("response.completed", {"response": {**whole, "output": list(ITEMS.values())}}))
    return Reply(make_response_stream(*(make_event(name, **fields) for name, fields in events)))


def test_items_that_another_server_made_satisfy_the_accumulators(tmp_path: Path) -> None:
    """Responses API 8.3: what is passed on from a server that speaks Responses fits as well, on both wires."""
    find_node()
    with (
        serve_upstream(answer_in_kind) as upstream,
        start_server(
            tmp_path,
            ANTIPHON_ENDPOINTS__NATIVE__URL=upstream.url,
            ANTIPHON_ENDPOINTS__NATIVE__DIALECT="responses",
        ) as running,
    ):
        expected = [name for kind in PASSED_ON for name, _ in INSIDE[kind]]
        run_node_tests(
            "openai_passed_on.mjs",
            tmp_path,
            SERVER_URL=running.url,
            MODEL=MODEL,
            EXPECTED=json.dumps(expected),
        )
