"""The family of items and parts: each kind is taken into the history and listed again as it was sent, or refused.

Invariant: what is answered and not listed with its fields is no pass; a refusal counts where it names the item.
"""

from functools import partial
from typing import Any

import msgspec

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.requirements.compaction import find_blob, record_trigger
from antiphon.checker.requirements.judging import holds, is_named, judge_refusal
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import GREETING
from antiphon.checker.subject import Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Outcome, failed, passed, undecided

_API = "OpenAI API reference, Responses"
_CALL = "call_of_the_check"
#: What the model says to it does not matter.
BRIEF_TOKENS = 16
#: The smallest image there is, as a data URL.
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmM"
    "IQAAAABJRU5ErkJggg=="
)
_TEXT_FILE = "data:text/plain;base64,VGhlIHZhdWx0IGhvbGRzIDQ3MTEu"


class ItemCase(msgspec.Struct, frozen=True):
    """An item that is sent, with those before and after it that it needs."""

    item: Item
    before: tuple[Item, ...] = ()
    after: tuple[Item, ...] = ()

    @property
    def type(self) -> str:
        """The item's type."""
        return str(self.item["type"])


_FUNCTION_CALL: Item = {
    "type": "function_call",
    "call_id": _CALL,
    "name": "open_vault",
    "arguments": '{"name":"door"}',
}
_FUNCTION_OUTPUT: Item = {"type": "function_call_output", "call_id": _CALL, "output": "It holds 4711."}
_CUSTOM_CALL: Item = {
    "type": "custom_tool_call",
    "call_id": _CALL,
    "name": "write_note",
    "input": "door: 4711",
}
_CUSTOM_OUTPUT: Item = {"type": "custom_tool_call_output", "call_id": _CALL, "output": "Written."}
_SEARCH_CALL: Item = {
    "type": "tool_search_call",
    "call_id": _CALL,
    "execution": "client",
    "arguments": {"query": "vault"},
    "status": "completed",
}
_FOUND_TOOL = {
    "type": "function",
    "name": "close_vault",
    "description": "Closes a vault.",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}
_SEARCH_OUTPUT: Item = {
    "type": "tool_search_output",
    "call_id": _CALL,
    "execution": "client",
    "tools": [_FOUND_TOOL],
    "status": "completed",
}
_PROGRAM: Item = {
    "type": "program",
    "id": "prog_1",
    "call_id": _CALL,
    "code": "open_vault('door')",
    "fingerprint": "f1",
}
_PROGRAM_OUTPUT: Item = {
    "type": "program_output",
    "id": "progo_1",
    "call_id": _CALL,
    "result": "4711",
    "status": "completed",
}
_COMPUTER_CALL: Item = {
    "type": "computer_call",
    "id": "cu_1",
    "call_id": _CALL,
    "action": {"type": "screenshot"},
    "pending_safety_checks": [],
    "status": "completed",
}
_COMPUTER_OUTPUT: Item = {
    "type": "computer_call_output",
    "call_id": _CALL,
    "output": {"type": "computer_screenshot", "image_url": PIXEL},
}
_LOCAL_CALL: Item = {
    "type": "local_shell_call",
    "id": "lsh_1",
    "call_id": _CALL,
    "action": {"type": "exec", "command": ["ls"], "env": {}},
    "status": "completed",
}
_LOCAL_OUTPUT: Item = {
    "type": "local_shell_call_output",
    "id": "lsho_1",
    "call_id": _CALL,
    "output": "door.txt",
}
_SHELL_CALL: Item = {
    "type": "shell_call",
    "call_id": _CALL,
    "action": {"commands": ["ls"], "timeout_ms": 1000, "max_output_length": 100},
    "status": "completed",
}
_SHELL_OUTPUT: Item = {
    "type": "shell_call_output",
    "call_id": _CALL,
    "output": [{"stdout": "door.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    "max_output_length": 100,
}
_PATCH_CALL: Item = {
    "type": "apply_patch_call",
    "call_id": _CALL,
    "operation": {"type": "create_file", "path": "door.txt", "diff": "+4711\n"},
    "status": "completed",
}
_PATCH_OUTPUT: Item = {
    "type": "apply_patch_call_output",
    "call_id": _CALL,
    "status": "completed",
    "output": "Created.",
}
_LISTED_TOOL = {
    "name": "say",
    "description": "Repeats.",
    "input_schema": {"type": "object", "properties": {}},
}
_MCP_LIST: Item = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "echo", "tools": [_LISTED_TOOL]}
_MCP_CALL: Item = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "echo",
    "name": "say",
    "arguments": '{"text":"4711"}',
    "output": "4711",
    "status": "completed",
}
_APPROVAL: Item = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "echo",
    "name": "say",
    "arguments": '{"text":"4711"}',
}
_DENIAL: Item = {
    "type": "mcp_approval_response",
    "approval_request_id": "mcpr_1",
    "approve": False,
    "reason": "Not now.",
}
_BLOB = {"encrypted_content": "sealed-by-nobody"}
_SEALED = ("compaction", "compaction_summary")
#: A name that clients know a type by, and the API's name, under which it may be listed.
_ALIASES = {"compaction_summary": "compaction"}

ITEM_CASES: tuple[ItemCase, ...] = (
    ItemCase(
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}
    ),
    ItemCase(_FUNCTION_CALL, after=(_FUNCTION_OUTPUT,)),
    ItemCase(_FUNCTION_OUTPUT, before=(_FUNCTION_CALL,)),
    ItemCase(_CUSTOM_CALL, after=(_CUSTOM_OUTPUT,)),
    ItemCase(_CUSTOM_OUTPUT, before=(_CUSTOM_CALL,)),
    ItemCase(
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Vaults hold numbers."}],
        },
        after=(
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Yes.", "annotations": []}],
            },
        ),
    ),
    ItemCase({"type": "compaction", "id": "cmp_1", **_BLOB}),
    ItemCase({"type": "compaction_summary", "id": "cmp_1", **_BLOB}),
    ItemCase({"type": "configuration_update", "reasoning": {"effort": "low"}}),
    ItemCase({"type": "additional_tools", "role": "developer", "tools": [_FOUND_TOOL]}),
    ItemCase(_SEARCH_CALL, after=(_SEARCH_OUTPUT,)),
    ItemCase(_SEARCH_OUTPUT, before=(_SEARCH_CALL,)),
    ItemCase(_PROGRAM, after=(_PROGRAM_OUTPUT,)),
    ItemCase(_PROGRAM_OUTPUT, before=(_PROGRAM,)),
    ItemCase({"type": "file_search_call", "id": "fs_1", "queries": ["tower"], "status": "completed"}),
    ItemCase(
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "tower"},
        }
    ),
    ItemCase(_COMPUTER_CALL, after=(_COMPUTER_OUTPUT,)),
    ItemCase(_COMPUTER_OUTPUT, before=(_COMPUTER_CALL,)),
    ItemCase(
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "container_id": "cntr_1",
            "code": "2**10",
            "status": "completed",
        }
    ),
    ItemCase({"type": "image_generation_call", "id": "ig_1", "result": "aGk=", "status": "completed"}),
    ItemCase(_LOCAL_CALL, after=(_LOCAL_OUTPUT,)),
    ItemCase(_LOCAL_OUTPUT, before=(_LOCAL_CALL,)),
    ItemCase(_SHELL_CALL, after=(_SHELL_OUTPUT,)),
    ItemCase(_SHELL_OUTPUT, before=(_SHELL_CALL,)),
    ItemCase(_PATCH_CALL, after=(_PATCH_OUTPUT,)),
    ItemCase(_PATCH_OUTPUT, before=(_PATCH_CALL,)),
    ItemCase(_MCP_LIST),
    ItemCase(_MCP_CALL),
    ItemCase(_APPROVAL, after=(_DENIAL,)),
    ItemCase(_DENIAL, before=(_APPROVAL,)),
    ItemCase(
        {"type": "agent_message", "author": "scout", "recipient": "clerk", "content": "The vault holds 4711."}
    ),
)


async def probe_item(case: ItemCase, subject: Subject) -> Outcome:
    """The item between two messages, then the list of what was sent."""
    place = 1 + len(case.before)
    item = await _choose_item(case, subject)
    sent = [user("The vault is called door."), *case.before, item, *case.after, user(GREETING)]
    answer = await subject.create(sent, max_output_tokens=BRIEF_TOKENS)
    if isinstance(answer, Refusal):
        # What it belongs to may be what the server does not take.
        own = range(1, 2 + len(case.before) + len(case.after))
        return _judge_refused_item(answer, case.type, [place, *own])
    return await _judge_listed(subject, answer, case.type, item)


async def _choose_item(case: ItemCase, subject: Subject) -> Item:
    """The item of the case; for a compaction one of the server's own, where it makes any."""
    if case.type in _SEALED:
        try:
            made = (await record_trigger(subject)).outputs
        except UndecidedError:
            return case.item
        found = next((item for item in made if find_blob(item)), None)
        if found is not None:
            return {**found, "type": case.type}
    return case.item


def _judge_refused_item(refusal: Refusal, item_type: str, places: list[int]) -> Outcome:
    if refusal.code == "invalid_encrypted_content":
        return passed(f"refused, its seal is unknown ({refusal})", http_status=refusal.status)
    return judge_refusal(refusal, *(f"input[{place}]" for place in places), item_type)


async def _judge_listed(subject: Subject, answer: Answer, item_type: str, item: Item) -> Outcome:
    listed = await subject.list_input_items(answer.id)
    if isinstance(listed, Refusal):
        return undecided(f"answered, and the input items cannot be listed ({listed})")
    names = (item_type, _ALIASES.get(item_type, item_type))
    found = [one for one in listed if isinstance(one, dict) and one.get("type") in names]
    # Servers may give an item that has no id one of their own, and another than the client's.
    wanted = {key: value for key, value in item.items() if key not in ("id", "status", "type")}
    if any(holds(one, wanted) for one in found):
        return passed("taken, and listed as it was sent", listed=len(listed))
    if not found:
        return failed(
            f"answered, and no {item_type} is listed: it was dropped without a word", listed=len(listed)
        )
    lost = [key for key in wanted if not any(holds(one.get(key), wanted[key]) for one in found)]
    return failed(
        f"answered, and {', '.join(lost) or 'its members'} of the listed {item_type} are not as sent"
    )


async def probe_reference(subject: Subject) -> Outcome:
    """A reference to the message of an earlier answer: the list shows that message."""
    first = await subject.ask([user(GREETING)])
    message = next((item for item in first.output if item.get("type") == "message"), None)
    if message is None or not isinstance(message.get("id"), str):
        return undecided("the answer has no message with an id that could be referred to")
    reference = {"type": "item_reference", "id": message["id"]}
    answer = await subject.create([user("Before."), reference, user("Go on.")])
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "input[1]", "item_reference", message["id"])
    wanted = {"type": "message", "role": "assistant", "content": message.get("content")}
    return await _judge_listed(subject, answer, "message", wanted)


async def probe_trigger(subject: Subject) -> Outcome:
    """A compaction trigger at the end: the answer is one compaction item, or it is refused."""
    recording = await subject.try_record(
        "compaction trigger",
        input=[user("The vault is called door."), user(GREETING), {"type": "compaction_trigger"}],
        max_output_tokens=20_000,
    )
    if isinstance(recording, Refusal):
        return judge_refusal(recording, "input[2]", "compaction_trigger")
    types = [str(item.get("type")) for item in recording.outputs if isinstance(item, dict)]
    if types == ["compaction"]:
        return passed("the answer is one compaction item")
    return failed(f"answered by {', '.join(types) or 'nothing'}, not by one compaction item")


# Parts.


class PartCase(msgspec.Struct, frozen=True):
    """A part in its item; `path` is where in the item it stands."""

    name: str
    item: Item
    before: tuple[Item, ...] = ()
    after: tuple[Item, ...] = ()

    @property
    def part_type(self) -> str:
        """The part's type."""
        return self.name.partition(".")[0]


def _in_user(name: str, part: dict[str, Any]) -> PartCase:
    text = {"type": "input_text", "text": "Look at this."}
    parts = [part] if part["type"] == "input_text" else [text, part]
    return PartCase(name, {"type": "message", "role": "user", "content": parts})


def _in_assistant(name: str, part: dict[str, Any]) -> PartCase:
    return PartCase(name, {"type": "message", "role": "assistant", "content": [part]})


def _annotated(name: str, annotation: dict[str, Any]) -> PartCase:
    part = {
        "type": "output_text",
        "text": "The tower is high.",
        "annotations": [{"type": name, **annotation}],
    }
    return _in_assistant(name, part)


def _in_reasoning(name: str, place: str) -> PartCase:
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        place: [{"type": name, "text": "Vaults hold numbers."}],
    }
    message = {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Yes.", "annotations": []}],
    }
    return PartCase(name, item, after=(message,))


_FILE = {"type": "input_file", "filename": "vault.txt", "file_data": _TEXT_FILE}
_FILE_ID = "file_of_no_server"
_SPAN = {"start_index": 4, "end_index": 9}
_LOGPROB = {"token": "Yes", "logprob": -0.1, "bytes": [89, 101, 115], "top_logprobs": []}

PART_CASES: tuple[PartCase, ...] = (
    _in_user("input_text", {"type": "input_text", "text": "The vault holds 4711."}),
    _in_user(
        "input_text.prompt_cache_breakpoint",
        {"type": "input_text", "text": "Remember.", "prompt_cache_breakpoint": {"mode": "explicit"}},
    ),
    _in_user("input_image", {"type": "input_image", "image_url": PIXEL}),
    _in_user("input_image.detail", {"type": "input_image", "image_url": PIXEL, "detail": "low"}),
    _in_user("input_image.file_id", {"type": "input_image", "file_id": _FILE_ID}),
    _in_user("input_file", _FILE),
    _in_user("input_file.file_id", {"type": "input_file", "file_id": _FILE_ID}),
    _in_user("input_file.file_url", {"type": "input_file", "file_url": "http://127.0.0.1:9/vault.txt"}),
    _in_user("input_audio", {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
    _in_user("input_video", {"type": "input_video", "video_url": "http://127.0.0.1:9/vault.mp4"}),
    _in_assistant("output_text", {"type": "output_text", "text": "It holds 4711.", "annotations": []}),
    _in_assistant(
        "output_text.logprobs",
        {"type": "output_text", "text": "Yes", "annotations": [], "logprobs": [_LOGPROB]},
    ),
    _in_assistant("refusal", {"type": "refusal", "refusal": "I will not open it."}),
    _annotated("file_citation", {"file_id": _FILE_ID, "filename": "tower.txt", "index": 3}),
    _annotated("url_citation", {"url": "https://tower.example", "title": "The tower", **_SPAN}),
    _annotated(
        "container_file_citation",
        {"container_id": "cntr_1", "file_id": _FILE_ID, "filename": "tower.txt", **_SPAN},
    ),
    _annotated("file_path", {"file_id": _FILE_ID, "index": 3}),
    _in_reasoning("reasoning_text", "content"),
    _in_reasoning("summary_text", "summary"),
    PartCase("computer_screenshot", _COMPUTER_OUTPUT, before=(_COMPUTER_CALL,)),
)


async def probe_part(case: PartCase, subject: Subject) -> Outcome:
    """The part in its item, then the list of what was sent."""
    place = 1 + len(case.before)
    sent = [user("The vault is called door."), *case.before, case.item, *case.after, user(GREETING)]
    answer = await subject.create(sent, max_output_tokens=BRIEF_TOKENS)
    if isinstance(answer, Refusal):
        leaf = case.name.rpartition(".")[2]
        if answer.is_clients_fault and is_named(answer, f"input[{place - 1}]", f"input[{place}]"):
            return passed(f"refused by its place ({answer})", http_status=answer.status)
        return judge_refusal(answer, f"input[{place}]", leaf, case.part_type)
    return await _judge_listed(subject, answer, str(case.item["type"]), case.item)


def _make_requirements() -> list[Requirement]:
    made = []
    for case in ITEM_CASES:
        told = f"An input item of type {case.type} is listed again as it was sent, or refused by its place."
        source, probe = f"{_API}: input items", partial(probe_item, case)
        made.append(Requirement(f"items.{case.type}", "items", source, told, probe, (f"item:{case.type}",)))
    for part in PART_CASES:
        told = f"A part {part.name} is listed again as it was sent, or refused by its place."
        source, probe_one = f"{_API}: content", partial(probe_part, part)
        made.append(
            Requirement(f"parts.{part.name}", "parts", source, told, probe_one, (f"part:{part.name}",))
        )
    return made


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        "items.item_reference",
        "items",
        f"{_API}: item_reference",
        "A reference to a stored item stands for it, or is refused by its place.",
        probe_reference,
        ("item:item_reference",),
    ),
    Requirement(
        "items.compaction_trigger",
        "items",
        "OpenAI guide, Compaction",
        "A compaction trigger is answered by one compaction item, or refused by its place.",
        probe_trigger,
        ("item:compaction_trigger", "output:compaction"),
    ),
    *_make_requirements(),
)
