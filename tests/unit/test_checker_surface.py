"""The surface: everything that the API and this server have is a subject, and every subject has its requirements."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from tools.checked_server import KEYS, open_checked_server

from antiphon.checker import MANIFEST, OURS, SURFACE, group_subjects
from antiphon.checker.doubles import FAMILIES, list_double_names
from antiphon.checker.requirements.events import CAUSES, find_cause
from antiphon.checker.requirements.open_responses import EVENTS
from antiphon.checker.surface import EVENT_FIELDS, TOOL_FIELDS
from antiphon.client import AppTransport
from antiphon.protocol.content import PARTS, ComputerScreenshot, get_part_type
from antiphon.protocol.count_request import COUNT_FIELDS
from antiphon.protocol.events import EVENT_TYPES
from antiphon.protocol.items import ITEM_TYPES
from antiphon.protocol.requests import FIELDS, Includable
from antiphon.protocol.tools import Tool, ToolChoice

NAMES = group_subjects()


def list_tags(union: object) -> set[str]:
    """The `type` of every Struct of a union."""
    return {str(kind.__struct_config__.tag) for kind in union.__args__ if hasattr(kind, "__struct_config__")}  # type: ignore[attr-defined]


def test_no_subject_stands_twice() -> None:
    """Ours."""
    assert len(set(SURFACE)) == len(SURFACE)
    assert set(SURFACE) >= OURS


def test_every_subject_is_covered_and_nothing_else() -> None:
    """Ours: the manifest covers the API's surface, subject by subject."""
    covered = {subject for requirement in MANIFEST for subject in requirement.covers}
    assert covered == set(SURFACE)
    assert [requirement.id for requirement in MANIFEST if not requirement.covers] == []


def test_every_field_of_a_request_is_a_subject() -> None:
    """Responses API, create: what this server knows, and what only a WebSocket takes."""
    tops = {name.partition(".")[0] for name in NAMES["field"]}
    assert tops == {*FIELDS, "generate", "stream_id"}
    assert set(COUNT_FIELDS) - tops == {"personality"}


def test_every_setting_of_a_tool_is_a_subject() -> None:
    """Responses API, tools."""
    for kind in Tool.__args__:
        tag = str(kind.__struct_config__.tag)
        names = {name.partition(".")[0] for name in TOOL_FIELDS[tag]}
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        # A dated or plain name of a tool has the settings of the tool that is meant.
        assert names == known or (not names and tag.startswith("web_search")), tag


def test_every_tool_choice_and_include_is_a_subject() -> None:
    """Responses API: tools, tool_choice, include."""
    assert set(NAMES["tool"]) == list_tags(Tool)
    assert set(NAMES["choice"]) == {"none", "auto", "required"} | list_tags(ToolChoice)
    assert set(NAMES["include"]) == set(Includable.__args__)  # type: ignore[attr-defined]


def test_every_item_and_part_is_a_subject() -> None:
    """Responses API: input items, content."""
    assert set(NAMES["item"]) == set(ITEM_TYPES)
    parts = {*PARTS, get_part_type(ComputerScreenshot())}
    annotations = {"file_citation", "url_citation", "container_file_citation", "file_path"}
    assert {name.partition(".")[0] for name in NAMES["part"]} == parts | annotations


def test_every_event_is_a_subject_with_the_members_of_its_struct() -> None:
    """Responses API, streaming events: names, and what each must hold."""
    assert set(NAMES["event"]) == set(EVENT_TYPES) == set(EVENT_FIELDS)
    for name, members in EVENT_FIELDS.items():
        fields = msgspec.structs.fields(EVENT_TYPES[name])
        known = {field.encode_name for field in fields} - {"sequence_number"}
        assert set(members.split()) <= known, name
        assert find_cause(name) in CAUSES


def test_the_contract_of_open_responses_has_24_events() -> None:
    """Open Responses, contract 2026-04-24."""
    assert len(EVENTS) == 24


def test_every_route_of_this_server_is_a_subject(tmp_path: Path) -> None:
    """Ours: the routes come from /openapi.json."""

    async def read_paths() -> dict[str, dict[str, object]]:
        async with open_checked_server(tmp_path) as app:
            transport = AppTransport(app)
            headers = {"authorization": f"Bearer {KEYS['ada']}"}
            reply = await transport.send("GET", "/openapi.json", headers, None)
            paths: dict[str, dict[str, object]] = msgspec.json.decode(await reply.read())["paths"]
            await transport.close()
            return paths

    served = {
        f"{method.upper()} {re.sub(r'{(response|conversation)_id}', '{id}', path.removeprefix('/v1'))}"
        for path, operations in asyncio.run(read_paths()).items()
        for method in operations
    }
    assert served <= set(NAMES["endpoint"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_doubles_is_named_in_one_line(family: str) -> None:
    """Ours: hundreds of names would say less."""
    assert list_double_names().count(f"{family}NAME") == 1
    assert all(name.startswith(family) for name in FAMILIES[family])
