"""The family of events: wherever an event comes in this run it has its members, and each is provoked where it can be.

A cause is a request that brings some events. Where the server refuses the cause by its name, the event has none
there, and that is honest. Invariant: an event that never came, though its cause was not refused, is no pass.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from antiphon.checker.answers import Refusal, read_event_error, read_response
from antiphon.checker.recordings import Event, Recording, read_type
from antiphon.checker.requirements.judging import judge_refusal
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import CUT_TOKENS, GREETING, LONG_TASK, make_steer
from antiphon.checker.requirements.tools import MCP_NEEDS, NOWHERE, TOOLS, need_mcp, record_tool
from antiphon.checker.socket_line import read_error_frame
from antiphon.checker.subject import NoSocketError, Subject, user
from antiphon.checker.surface import EVENT_FIELDS
from antiphon.checker.verdicts import Outcome, failed, passed, unasked

_STREAMING = "OpenAI API reference, Responses: streaming events"

#: Member -> its types, where it is no text.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "annotation": dict,
    "annotation_index": int,
    "command_index": int,
    "content_index": int,
    "error": dict,
    "item": dict,
    "logprobs": list,
    "output": list,
    "output_index": int,
    "part": dict,
    "partial_image_index": int,
    "response": dict,
    "steer": dict,
    "summary_index": int,
}
#: The newest deltas of shell outputs are objects.
_OBJECT_DELTAS = ("response.shell_call_output_content.delta",)

Found = Recording | Refusal


class Cause(msgspec.Struct, frozen=True):
    """A request that brings events: how it is made, the names by which it may be refused, and what it takes."""

    provoke: Callable[[Subject], Awaitable[Found]]
    names: tuple[str, ...]
    #: Whether it is a route of its own, which a server need not have.
    is_route: bool = False
    #: What the server or its model must have; "" where every server can.
    needs: str = ""


def _ask(name: str, task: str, **fields: Any) -> Callable[[Subject], Awaitable[Found]]:
    return lambda subject: subject.try_record(name, input=[user(task)], **fields)


def _use(tool: str) -> Callable[[Subject], Awaitable[Found]]:
    return lambda subject: record_tool(subject, TOOLS[tool])


async def _call_failing(subject: Subject) -> Found:
    tool = {**TOOLS["mcp"].tool, "server_url": subject.mcp_url or NOWHERE, "require_approval": "never"}
    return await subject.try_record(
        "failing mcp call",
        input=[user("Use the tool fail of the server echo.")],
        tools=[tool],
        tool_choice="required",
    )


async def _list_failing(subject: Subject) -> Found:
    return await subject.try_record(
        "failing mcp list",
        input=[user(GREETING)],
        tools=[{**TOOLS["mcp"].tool, "require_approval": "never"}],
    )


async def _send_audio(subject: Subject) -> Found:
    part = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    return await subject.try_record("audio", input=[{"type": "message", "role": "user", "content": [part]}])


async def _trigger_compaction(subject: Subject) -> Found:
    return await subject.try_record(
        "compaction trigger",
        input=[user("The vault is called door."), user(GREETING), {"type": "compaction_trigger"}],
        max_output_tokens=20_000,
    )


async def _steer(subject: Subject) -> Found:
    """Steering is spoken over a WebSocket alone."""
    try:
        async with subject.open_socket() as line:
            before, _ = await line.probe_frame(make_steer(subject))
    except NoSocketError as answer:
        return answer.refusal
    error = next((event for event in before if read_type(event) == "error"), None)
    return read_error_frame(error) if error is not None else Recording(before)


async def _use_container(subject: Subject) -> Found:
    tool = {"type": "shell", "environment": {"type": "container_auto"}}
    return await subject.try_record(
        "shell in a container", input=[user("Run ls in the shell.")], tools=[tool], tool_choice="required"
    )


#: What a server shows its work only in.
LONG_COMPACTION = "a long compaction"
CAUSES: dict[str, Cause] = {
    "text": Cause(_ask("a text", "Write one sentence about the sea."), ()),
    "cut": Cause(
        _ask("a cut", LONG_TASK, max_output_tokens=CUT_TOKENS),
        ("max_output_tokens",),
        needs="an answer that can be cut",
    ),
    "call": Cause(_use("function"), ("tools", "tool_choice", "function")),
    "custom": Cause(_use("custom"), ("tools", "tool_choice", "custom")),
    "background": Cause(
        _ask("background", GREETING, background=True, store=True),
        ("background",),
        needs="a queue in the background",
    ),
    "failure": Cause(
        _ask("failure", "Fail on purpose in the middle of your answer."), (), needs="an answer that fails"
    ),
    "refusal": Cause(
        _ask("refusal", "Refuse on purpose to tell me the number of the vault."),
        (),
        needs="a model that refuses",
    ),
    "reasoning": Cause(
        _ask(
            "reasoning",
            "Think hard, then say hello.",
            reasoning={"effort": "low", "summary": "auto"},
            include=["reasoning.encrypted_content"],
            store=False,
        ),
        ("reasoning", "include"),
        needs="a model that reasons",
    ),
    "raw reasoning": Cause(
        _ask("raw reasoning", "Think hard, then say hello.", reasoning={"effort": "low"}),
        ("reasoning",),
        needs="a server that shows raw reasoning",
    ),
    "web search": Cause(_use("web_search"), ("web_search", "tool_choice", "tools[0]"), needs="a web search"),
    "file search": Cause(_use("file_search"), ("file_search", "tools[0]"), needs="a file search"),
    "code": Cause(_use("code_interpreter"), ("code_interpreter", "tools[0]"), needs="a code interpreter"),
    "image": Cause(_use("image_generation"), ("image_generation", "tools[0]"), needs="image generation"),
    "mcp": Cause(_use("mcp"), ("mcp", "tools[0]", "echo"), needs=MCP_NEEDS),
    "failing mcp": Cause(_call_failing, ("mcp", "tools[0]", "echo"), needs=MCP_NEEDS),
    "unreachable mcp": Cause(_list_failing, ("mcp", "tools[0]", "echo"), needs="MCP"),
    "shell": Cause(_use("shell"), ("shell", "tools[0]"), needs="a shell"),
    "container": Cause(_use_container, ("shell", "tools[0]", "environment"), needs="a shell in a container"),
    "audio": Cause(_send_audio, ("audio", "input[0]"), needs="an audio model"),
    "compaction": Cause(_trigger_compaction, ("compaction_trigger", "input[2]"), needs=LONG_COMPACTION),
    "socket": Cause(
        _steer, ("WebSocket", "websocket", "Upgrade", "GET", "steer"), is_route=True, needs="a WebSocket"
    ),
}
#: What refuses every steering, whatever it asks for.
_UNSTEERABLE = "steering_not_supported"
#: Beginning of an event's name -> its cause; the longest that fits.
_CAUSED: dict[str, str] = {
    "error": "failure",
    "response.": "text",
    "response.audio.": "audio",
    "response.code_interpreter_call": "code",
    "response.compaction.": "compaction",
    "response.custom_tool_call_input.": "custom",
    "response.failed": "failure",
    "response.file_search_call.": "file search",
    "response.function_call_arguments.": "call",
    "response.image_generation_call.": "image",
    "response.incomplete": "cut",
    "response.mcp_": "mcp",
    "response.mcp_call.failed": "failing mcp",
    "response.mcp_list_tools.failed": "unreachable mcp",
    "response.output_text.annotation.": "web search",
    "response.queued": "background",
    "response.reasoning_summary_": "reasoning",
    "response.reasoning_text.": "raw reasoning",
    "response.refusal.": "refusal",
    "response.shell_call_command.": "shell",
    "response.shell_call_output_content.": "container",
    "response.steer": "socket",
    "response.web_search_call.": "web search",
}


def find_cause(event_type: str) -> str:
    """The name of what provokes an event."""
    return _CAUSED[max((start for start in _CAUSED if event_type.startswith(start)), key=len)]


async def probe_event(event_type: str, subject: Subject) -> Outcome:
    """The event in the stream of its cause, and everywhere else where it came so far."""
    cause = CAUSES[find_cause(event_type)]
    # A text is there always, so that a probe alone sees what it sees among others.
    await CAUSES["text"].provoke(subject)
    found = await cause.provoke(subject)
    recordings = [*subject.list_recordings(), *([found] if isinstance(found, Recording) else [])]
    events = [event for one in recordings for event in one.events if read_type(event) == event_type]
    faults = [fault for event in events for fault in find_member_faults(event, event_type)]
    if faults:
        return failed(f"{event_type}: {'; '.join(dict.fromkeys(faults))}"[:500], events=len(events))
    if events:
        return passed(f"{len(events)} came, each with its members", events=len(events))
    refusal = _read_failure(found)
    if refusal is not None and cause.is_route and refusal.status in (404, 405, 426):
        return passed(f"its cause is not served ({refusal})", http_status=refusal.status)
    if refusal is not None and refusal.code == _UNSTEERABLE:
        return unasked(
            "a server that can be steered", f"no {event_type} came: its cause is refused ({refusal})"
        )
    if refusal is not None:
        outcome = judge_refusal(refusal, *(cause.names or ("input",)))
        outcome = Outcome(outcome.verdict, f"its cause is refused: {outcome.explanation}", outcome.evidence)
        return need_mcp(subject, outcome) if cause.needs == MCP_NEEDS else outcome
    told = f"no {event_type} came"
    return unasked(cause.needs, told) if cause.needs else failed(f"{told}, and every server has cause for it")


def _read_failure(found: Found) -> Refusal | None:
    if isinstance(found, Refusal):
        return found
    for event in found.events:
        if read_type(event) == "response.steer.failed":
            return msgspec.structs.replace(read_event_error(event), status=400)
    answer = read_response(found.response)
    return answer if isinstance(answer, Refusal) else None


def find_member_faults(event: Event, event_type: str) -> list[str]:
    """Members that the event lacks, or that are of a wrong type."""
    faults = []
    for name in EVENT_FIELDS[event_type].split():
        wanted = dict if event_type in _OBJECT_DELTAS and name == "delta" else _TYPES.get(name, str)
        value = event.get(name)
        if (
            name == "error"
            and event_type == "error"
            and value is None
            and isinstance(event.get("message"), str)
        ):
            # The SDKs' classes have the error's members at the top.
            continue
        if not isinstance(value, wanted) or isinstance(value, bool):
            faults.append(f"{name} is {type(value).__name__}" if name in event else f"{name} is missing")
    if not event_type.startswith("response.steer") and type(event.get("sequence_number")) is not int:
        faults.append("sequence_number is missing")
    return faults


def _make(event_type: str) -> Requirement:
    covers = [f"event:{event_type}"]
    if event_type == "response.reasoning_summary_part.added":
        covers.append("output:reasoning")
    if event_type == "response.output_item.added":
        covers.append("output:message")
    if event_type == "response.mcp_call.in_progress":
        covers.append("output:mcp_call")
    told = f"{event_type} has its members wherever it comes, or what would bring it is refused by its name."
    return Requirement(
        f"events.{event_type}", "events", _STREAMING, told, partial(probe_event, event_type), tuple(covers)
    )


REQUIREMENTS: tuple[Requirement, ...] = tuple(map(_make, EVENT_FIELDS))
