"""Probes with the requests and the assertions of the Open Responses compliance tests that need no WebSocket.

Sources name the tests of that suite. It knows the suite's schemas as tables. Invariant: a probe asserts what its
test asserts, no less: the whole response, a status, an output, and each event of a stream.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from antiphon.checker.recordings import Event, read_type
from antiphon.checker.requirements.events import find_member_faults
from antiphon.checker.requirements.judging import is_named, read_list, read_objects
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.subject import Subject
from antiphon.checker.surface import EVENT_FIELDS
from antiphon.checker.verdicts import Outcome, failed, passed, unasked, undecided

_SOURCE = "Open Responses, contract 2026-04-24: test {}"
#: The last data of a stream, as that contract demands it.
END_MARK = b"data: [DONE]"

_NUMBER = (int, float)
#: Key of a response -> its types; None where it may be null.
RESPONSE_KEYS: dict[str, tuple[type | None, ...]] = {
    "id": (str,),
    "object": (str,),
    "created_at": (int,),
    "completed_at": (int, None),
    "status": (str,),
    "incomplete_details": (dict, None),
    "model": (str,),
    "previous_response_id": (str, None),
    "instructions": (str, None),
    "output": (list,),
    "error": (dict, None),
    "tools": (list,),
    "tool_choice": (str, dict),
    "truncation": (str,),
    "parallel_tool_calls": (bool,),
    "text": (dict,),
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "top_logprobs": (int,),
    "temperature": _NUMBER,
    "reasoning": (dict, None),
    "usage": (dict, None),
    "max_output_tokens": (int, None),
    "max_tool_calls": (int, None),
    "store": (bool,),
    "background": (bool,),
    "service_tier": (str,),
    "metadata": (dict,),
    "safety_identifier": (str, None),
    "prompt_cache_key": (str, None),
}
_USAGE = ("input_tokens", "output_tokens", "total_tokens")
_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}
_STATUSES = ("queued", "in_progress", "completed", "incomplete", "failed", "cancelled")
#: Type of an item -> its keys and their types.
_ITEMS: dict[str, dict[str, type]] = {
    "message": {"id": str, "status": str, "role": str, "content": list},
    "function_call": {"id": str, "call_id": str, "name": str, "arguments": str, "status": str},
    "reasoning": {"id": str, "summary": list},
    "compaction": {"id": str, "encrypted_content": str},
}
#: Keys that stand in an item with a real value, or not at all.
_NEVER_NULL = ("phase", "encrypted_content", "created_by")
#: Events of the contract's union; its names of raw reasoning are its own.
EVENTS = frozenset(
    {
        *(name for name in EVENT_FIELDS if name.startswith(("response.output_", "response.content_part."))),
        *(
            name
            for name in EVENT_FIELDS
            if name.startswith(("response.refusal.", "response.reasoning_summary_"))
        ),
        *(name for name in EVENT_FIELDS if name.startswith("response.function_call_arguments.")),
        *(
            f"response.{name}"
            for name in ("created", "queued", "in_progress", "completed", "failed", "incomplete")
        ),
        *("response.reasoning.delta", "response.reasoning.done", "error"),
    }
)


def find_response_faults(response: Any) -> list[str]:
    """Where a response does not fit the contract's ResponseResource."""
    if not isinstance(response, dict):
        return ["there is no response object"]
    faults = [
        f"{key} is {_name(response, key)}"
        for key, types in RESPONSE_KEYS.items()
        if not _fits(response, key, types)
    ]
    if response.get("object") != "response":
        faults.append("object is not 'response'")
    if response.get("status") not in _STATUSES:
        faults.append(f"status is {response.get('status')!r}")
    usage = response.get("usage")
    if isinstance(usage, dict):
        faults += [f"usage.{key} is {_name(usage, key)}" for key in _USAGE if not _fits(usage, key, (int,))]
        for place, key in _DETAILS.items():
            details = usage.get(place)
            if not isinstance(details, dict) or not _fits(details, key, (int,)):
                faults.append(f"usage.{place}.{key} is no number")
    for index, item in enumerate(read_list(response.get("output"))):
        faults += [f"output[{index}]: {fault}" for fault in _find_item_faults(item)]
    for index, tool in enumerate(read_objects(response.get("tools"))):
        lacking = [key for key in ("name", "description", "parameters", "strict") if key not in tool]
        if tool.get("type") == "function" and lacking:
            faults.append(f"tools[{index}] has no {', '.join(lacking)}")
    return faults


def _fits(value: dict[str, Any], key: str, types: tuple[type | None, ...]) -> bool:
    if key not in value:
        return False
    found = value[key]
    if found is None:
        return None in types
    if isinstance(found, bool):
        return bool in types
    return isinstance(found, tuple(kind for kind in types if kind is not None))


def _name(value: dict[str, Any], key: str) -> str:
    return type(value[key]).__name__ if key in value else "missing"


def _find_item_faults(item: Any) -> list[str]:
    if not isinstance(item, dict):
        return ["it is no object"]
    shape = _ITEMS.get(str(item.get("type")))
    if shape is None:
        return [f"type {item.get('type')!r} is none of the contract's"]
    faults = [f"{key} is {_name(item, key)}" for key, kind in shape.items() if not _fits(item, key, (kind,))]
    faults += [f"{key} is null" for key in _NEVER_NULL if key in item and item[key] is None]
    for index, part in enumerate(read_list(item.get("content")) if item.get("type") == "message" else []):
        if not isinstance(part, dict):
            faults.append(f"content[{index}] is no object")
        elif part.get("type") == "output_text":
            wanted = {"text": str, "annotations": list, "logprobs": list}
            faults += [
                f"content[{index}].{key} is no {kind.__name__}"
                for key, kind in wanted.items()
                if not _fits(part, key, (kind,))
            ]
        elif part.get("type") != "refusal" or not isinstance(part.get("refusal"), str):
            faults.append(f"content[{index}] is {part.get('type')!r}")
    return faults


def find_event_faults(event: Event) -> list[str]:
    """Where an event does not fit the contract's union."""
    kind = read_type(event)
    if kind not in EVENTS:
        return [f"{kind} is no event of the contract"]
    if kind not in EVENT_FIELDS:
        return []
    return [f"{kind}: {fault}" for fault in find_member_faults(event, kind)]


Assertion = Callable[[dict[str, Any]], str | None]


def assert_output(response: dict[str, Any]) -> str | None:
    """The output is not empty."""
    return None if response.get("output") else "the output is empty"


def assert_completed(response: dict[str, Any]) -> str | None:
    """The response is completed."""
    return None if response.get("status") == "completed" else f"the status is {response.get('status')!r}"


def assert_call(response: dict[str, Any]) -> str | None:
    """The output holds a function call."""
    types = [item.get("type") for item in read_list(response.get("output")) if isinstance(item, dict)]
    return None if "function_call" in types else f"the output holds {types}, no function_call"


class SuiteTest(msgspec.Struct, frozen=True):
    """A test of the suite: its input, its other fields, its assertions beside the schema."""

    name: str
    input: list[dict[str, Any]]
    fields: dict[str, Any] = {}
    assertions: tuple[Assertion, ...] = (assert_output, assert_completed)
    #: What not every model has, and a server may say so by name.
    needs: str = ""


def _say(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content, **fields}


_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}
        },
        "required": ["location"],
    },
}
#: A red picture of 32 by 32 pixels.
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKklEQVR42mM4ISBAU8QwasGoBaMWjFowasGoBaMWjF"
    "owasGoBaMWDBULADYCoC60NmFHAAAAAElFTkSuQmCC"
)
TESTS: tuple[SuiteTest, ...] = (
    SuiteTest("basic-response", [_say("user", "Say hello in exactly 3 words.")]),
    SuiteTest(
        "assistant-phase",
        [
            _say("assistant", "I will look at the numbers first.", phase="commentary"),
            _say("assistant", "The answer is 42.", phase="final_answer"),
            _say("user", "Say that once more in one word."),
        ],
    ),
    SuiteTest(
        "system-prompt",
        [
            _say("system", "You are a pirate. Always respond in pirate speak."),
            _say("user", "Say hello."),
        ],
        assertions=(assert_completed, assert_output),
    ),
    SuiteTest(
        "tool-calling",
        [_say("user", "What's the weather like in San Francisco?")],
        {"tools": [_WEATHER]},
        (assert_call,),
    ),
    SuiteTest(
        "image-input",
        [
            _say(
                "user",
                [
                    {"type": "input_text", "text": "What do you see in this image? Answer in one sentence."},
                    {"type": "input_image", "image_url": PICTURE},
                ],
            )
        ],
        needs="a model that sees images",
    ),
    SuiteTest(
        "multi-turn",
        [
            _say("user", "My name is Alice."),
            _say("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
            _say("user", "What is my name?"),
        ],
    ),
)


async def probe_test(test: SuiteTest, subject: Subject) -> Outcome:
    """The test's request, and its assertions."""
    body = {"model": subject.model, "input": test.input, **test.fields}
    fetched = await subject.fetch("POST", "/responses", body)
    if fetched.refusal is not None:
        if not fetched.refusal.is_clients_fault:
            return undecided(f"the request failed ({fetched.refusal})")
        if test.needs and is_named(fetched.refusal, "image"):
            return unasked(test.needs, f"the request is refused ({fetched.refusal})")
        return failed(f"the request is refused ({fetched.refusal})", http_status=fetched.status)
    return _judge(find_response_faults(fetched.body), fetched.object, test.assertions)


def _judge(faults: list[str], response: dict[str, Any], assertions: tuple[Assertion, ...]) -> Outcome:
    told = [told for assertion in assertions if (told := assertion(response)) is not None]
    if faults or told:
        return failed("; ".join([*told, *faults])[:500])
    return passed(
        f"fits the schema; {response.get('status')}", output_items=len(read_list(response.get("output")))
    )


async def probe_streaming(subject: Subject) -> Outcome:
    """The streaming test: every event fits the union, the last response the schema, and [DONE] ends it."""
    body = {"model": subject.model, "input": [_say("user", "Count from 1 to 5.")], "stream": True}
    fetched = await subject.fetch("POST", "/responses", body)
    if fetched.refusal is not None:
        return failed(f"the request is refused ({fetched.refusal})")
    recording = fetched.recording
    if not fetched.is_stream or not recording.events:
        return failed("stream:true is answered without an event")
    faults = [fault for event in recording.events for fault in find_event_faults(event)]
    if not fetched.raw.rstrip().endswith(END_MARK):
        faults.append("the stream does not end with data: [DONE]")
    for event in recording.events:
        if isinstance(event.get("response"), dict):
            faults += [f"{read_type(event)}: {fault}" for fault in find_response_faults(event["response"])]
    return _judge(list(dict.fromkeys(faults)), recording.response, (assert_output, assert_completed))


async def probe_phase_schema(subject: Subject) -> Outcome:
    """The suite's own fixture always passes; here a server's output has a phase that is one, or none at all."""
    body = {"model": subject.model, "input": [_say("user", "Say hello.")]}
    fetched = await subject.fetch("POST", "/responses", body)
    if fetched.refusal is not None:
        return undecided(f"the request is refused ({fetched.refusal})")
    for item in read_objects(fetched.object.get("output")):
        phase = item.get("phase", "final_answer")
        if phase not in ("commentary", "final_answer"):
            return failed(f"an output item has the phase {phase!r}")
    return passed("each output message has a phase of the contract, or none")


def _make(name: str, told: str, probe: Any, covers: tuple[str, ...]) -> Requirement:
    return Requirement(f"open-responses.{name}", "open-responses", _SOURCE.format(name), told, probe, covers)


_COVERS: dict[str, tuple[str, ...]] = {
    "basic-response": ("endpoint:POST /responses", "field:model", "output:message"),
    "assistant-phase": ("item:message",),
    "system-prompt": ("item:message",),
    "tool-calling": ("tool:function", "output:function_call"),
    "image-input": ("part:input_image",),
    "multi-turn": ("item:message",),
}
REQUIREMENTS: tuple[Requirement, ...] = (
    *(
        _make(
            test.name,
            f"The request of the test {test.name} is answered by a whole response that fits the contract's schema.",
            partial(probe_test, test),
            _COVERS[test.name],
        )
        for test in TESTS
    ),
    _make(
        "streaming-response",
        "Every event of a stream fits the contract's union, its last response the schema, and [DONE] ends it.",
        probe_streaming,
        ("field:stream",),
    ),
    _make(
        "response-output-phase-schema",
        "An output message has a phase of the contract, or none.",
        probe_phase_schema,
        ("output:message",),
    ),
)
