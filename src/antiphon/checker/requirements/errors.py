"""The family of errors: each wrong request is refused with the API's status, its code where it has one, by name.

It has one probe; the cases are data. Invariant: each case is wrong in one way.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from antiphon.checker.requirements.judging import expect_refusal, find_unserved
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import GREETING, TOOL
from antiphon.checker.subject import Subject, user
from antiphon.checker.surface import ERRORS
from antiphon.checker.verdicts import Outcome, Verdict, failed, passed, undecided

_ERRORS = "OpenAI API reference, Responses: errors"
_CONVERSATIONS = "OpenAI API reference, Conversations: errors"
#: An id in the place of one that nobody gave out: it is drawn anew in each run.
UNKNOWN = "UNKNOWN"


class ErrorCase(msgspec.Struct, frozen=True):
    """A request that is wrong, and how it is refused. `fields` are added to model and input, null ones left out."""

    name: str
    fields: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    code: str | None = None
    status: int = 400
    without: tuple[str, ...] = ()
    #: Where the error is not of this kind: sent as it is.
    raw: bytes | None = None


def _message(**fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}], **fields}


_LONG = "x" * 600
_BAD_SCHEMA = {"type": "json_schema", "name": "colour", "schema": 7}
_CHAT_TOOL = {"type": "function", "function": {"name": "open_vault", "parameters": {"type": "object"}}}
_REPEATED = [_message(id="msg_repeated"), _message(id="msg_repeated")]
_BROKEN = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed-by-nobody"}
_ANSWERED = {"type": "message", "role": "assistant", "content": "Yes."}

ERROR_CASES: tuple[ErrorCase, ...] = (
    ErrorCase("invalid_json", raw=b'{"model": "m", "input": '),
    ErrorCase("null_input", {"input": None}, ("input",)),
    ErrorCase("unknown_nested_parameter", {"text": {"colour": "red"}}, ("text.colour",), "unknown_parameter"),
    ErrorCase("did_you_mean", {"stor": False}, ("'store'",), "unknown_parameter"),
    ErrorCase(
        "unsupported_parameter",
        {"messages": [{"role": "user", "content": "Hi."}]},
        ("messages",),
        without=("input",),
    ),
    ErrorCase("invalid_role", {"input": [_message(role="robot")]}, ("input[0]",), "invalid_value"),
    ErrorCase("invalid_item_type", {"input": [{"type": "telegram"}]}, ("input[0]",), "invalid_value"),
    ErrorCase(
        "invalid_part",
        {"input": [_message(role="assistant")]},
        ("input[0].content[0]",),
        "invalid_value",
    ),
    ErrorCase("invalid_item_id", {"input": [_message(id="fc_1")]}, ("input[0].id",), "invalid_value"),
    ErrorCase("invalid_include", {"include": ["everything"]}, ("include[0]",), "invalid_value"),
    ErrorCase(
        "integer_below_min_value", {"max_output_tokens": 1}, ("max_output_tokens",), "integer_below_min_value"
    ),
    ErrorCase("integer_above_max_value", {"top_logprobs": 21}, ("top_logprobs",)),
    ErrorCase("decimal_above_max_value", {"temperature": 2.5}, ("temperature",)),
    ErrorCase(
        "object_above_max_properties",
        {"metadata": {f"k{n}": "v" for n in range(17)}},
        ("metadata",),
        "object_above_max_properties",
    ),
    ErrorCase(
        "string_above_max_length", {"metadata": {"k": _LONG}}, ("metadata.k",), "string_above_max_length"
    ),
    ErrorCase("property_name_above_max_length", {"metadata": {_LONG: "v"}}, ("metadata",)),
    ErrorCase("missing_tool_name", {"tools": [_CHAT_TOOL]}, ("tools[0].name",), "missing_required_parameter"),
    ErrorCase(
        "invalid_function_parameters",
        {"tools": [{**TOOL, "parameters": {"type": "string"}}]},
        ("tools[0].parameters",),
    ),
    ErrorCase("invalid_json_schema", {"text": {"format": _BAD_SCHEMA}}, ("text.format.schema",)),
    ErrorCase(
        "unknown_tool_choice",
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "close_vault"}},
        ("tool_choice", "close_vault"),
    ),
    ErrorCase(
        "item_not_found",
        {"input": [{"type": "item_reference", "id": f"msg_{UNKNOWN}"}]},
        ("input",),
        None,
        404,
    ),
    ErrorCase("duplicate_item", {"input": _REPEATED}, ("input", "msg_repeated")),
    ErrorCase(
        "invalid_encrypted_content",
        {"input": [_message(), _BROKEN, _ANSWERED, _message()]},
        (),
        "invalid_encrypted_content",
    ),
    ErrorCase(
        "call_without_output",
        {
            "input": [
                _message(),
                {"type": "function_call", "call_id": "call_open", "name": "open_vault", "arguments": "{}"},
            ]
        },
        ("call_open", "input"),
    ),
    ErrorCase(
        "output_without_call",
        {"input": [_message(), {"type": "function_call_output", "call_id": "call_none", "output": "1"}]},
        ("call_none", "input"),
    ),
)


async def probe_error(case: ErrorCase, subject: Subject) -> Outcome:
    """One wrong request."""
    refused = [name for name in case.fields if name in subject.left_out]
    if refused:
        return passed(f"{refused[0]} is refused altogether ({subject.left_out[refused[0]]})")
    body: Any = case.raw
    if body is None:
        known = subject.make_id("x")[2:]
        body = subject.make_body(**{"input": GREETING, **_fill(case.fields, known)})
        body = {name: value for name, value in body.items() if name not in case.without}
    fetched = await subject.fetch("POST", "/responses", body)
    return expect_refusal(fetched, ERRORS[case.name], status=case.status, code=case.code, names=case.names)


def _fill(value: Any, known: str) -> Any:
    """The value with its placeholder replaced by an id that nobody gave out."""
    if isinstance(value, str):
        return value.replace(UNKNOWN, known)
    if isinstance(value, list):
        return [_fill(part, known) for part in value]
    return {key: _fill(part, known) for key, part in value.items()} if isinstance(value, dict) else value


async def probe_unknown_response(subject: Subject) -> Outcome:
    """Read, delete, cancel and list by an id that nobody gave out."""
    unknown = subject.make_id("resp")
    outcome = passed("nothing was tried")
    for method, path in (
        ("GET", f"/responses/{unknown}"),
        ("DELETE", f"/responses/{unknown}"),
        ("POST", f"/responses/{unknown}/cancel"),
        ("GET", f"/responses/{unknown}/input_items"),
    ):
        fetched = await subject.fetch(method, path)
        what = f"{method} {path.replace(unknown, '{id}')} of an unknown response"
        outcome = expect_refusal(fetched, what, status=404, names=(unknown,))
        if outcome.verdict is not Verdict.PASS:
            return outcome
    return outcome


async def probe_unknown_conversation(subject: Subject) -> Outcome:
    """A conversation that nobody made: on its own routes, and in a request for a response."""
    unknown = subject.make_id("conv")
    outcome = passed("nothing was tried")
    requests: tuple[tuple[str, str, Any], ...] = (
        ("GET", f"/conversations/{unknown}", None),
        ("POST", f"/conversations/{unknown}", {"metadata": {}}),
        ("DELETE", f"/conversations/{unknown}", None),
        ("GET", f"/conversations/{unknown}/items", None),
        ("POST", f"/conversations/{unknown}/items", {"items": [_message()]}),
        ("GET", f"/conversations/{unknown}/items/msg_1", None),
        ("DELETE", f"/conversations/{unknown}/items/msg_1", None),
        ("POST", "/responses", subject.make_body(input=GREETING, conversation=unknown)),
    )
    for method, path, body in requests:
        fetched = await subject.fetch(method, path, body)
        if path == "/responses" and fetched.status == 400:
            # A server without conversations refuses the field by its name.
            return expect_refusal(fetched, "the field `conversation`", names=("conversation",))
        what = f"{method} {path.replace(unknown, '{id}')} of an unknown conversation"
        outcome = expect_refusal(fetched, what, status=404)
        if outcome.verdict is not Verdict.PASS:
            return outcome
    return outcome


async def probe_unknown_prompt(subject: Subject) -> Outcome:
    """A stored prompt that nobody stored: not found, or the field is refused by its name."""
    body = subject.make_body(input=GREETING, prompt={"id": subject.make_id("pmpt")})
    fetched = await subject.fetch("POST", "/responses", body)
    status = 404 if fetched.status == 404 else 400
    return expect_refusal(fetched, ERRORS["prompt_not_found"], status=status, names=("prompt", "Prompt"))


async def probe_exclusive(subject: Subject) -> Outcome:
    """A parent and a conversation at once, neither of which there is: the pair is refused before either is missed."""
    body = subject.make_body(
        input=GREETING,
        previous_response_id=subject.make_id("resp"),
        conversation=subject.make_id("conv"),
    )
    fetched = await subject.fetch("POST", "/responses", body)
    return expect_refusal(
        fetched, ERRORS["mutually_exclusive_parameters"], names=("'conversation'", "mutually_exclusive")
    )


async def probe_lone_reasoning(subject: Subject) -> Outcome:
    """Reasoning with nothing after it: refused, or at least listed as it was sent."""
    item = {"type": "reasoning", "id": "rs_alone", "summary": [{"type": "summary_text", "text": "Hm."}]}
    fetched = await subject.fetch("POST", "/responses", subject.make_body(input=[user("Hi."), item]))
    if fetched.refusal is not None:
        return expect_refusal(fetched, ERRORS["lone_reasoning"], names=("rs_alone", "reasoning", "input"))
    listed = await subject.fetch("GET", f"/responses/{fetched.object.get('id')}/input_items")
    if b"rs_alone" in listed.raw or b'"Hm."' in listed.raw:
        return passed("taken, and listed as it was sent")
    return failed("a reasoning item with nothing after it was dropped without a word")


async def probe_cursor(subject: Subject) -> Outcome:
    """A list of input items after an item that there is not."""
    first = await subject.ask([user(GREETING)])
    unknown = subject.make_id("msg")
    fetched = await subject.fetch("GET", f"/responses/{first.id}/input_items?after={unknown}")
    return expect_refusal(fetched, ERRORS["cursor_not_found"], status=404, names=("after", unknown))


async def probe_limit(subject: Subject) -> Outcome:
    """Limits of 0 and 101, and an order that is none."""
    first = await subject.ask([user(GREETING)])
    outcome = passed("nothing was tried")
    for query in ("limit=0", "limit=101", "order=sideways"):
        fetched = await subject.fetch("GET", f"/responses/{first.id}/input_items?{query}")
        outcome = expect_refusal(fetched, f"?{query}", names=(query.partition("=")[0],))
        if outcome.verdict is not Verdict.PASS:
            return outcome
    return outcome


async def probe_url(subject: Subject) -> Outcome:
    """A path that no server has: 404, and an error object."""
    fetched = await subject.fetch("GET", f"/{subject.make_word()}")
    outcome = expect_refusal(fetched, ERRORS["unknown_url"], status=404)
    return _need_object(outcome, fetched.object)


async def probe_method(subject: Subject) -> Outcome:
    """PUT on the path of responses: 405, and an error object."""
    fetched = await subject.fetch("PUT", "/responses", {})
    outcome = expect_refusal(fetched, ERRORS["method_not_allowed"], status=405)
    return _need_object(outcome, fetched.object)


def _need_object(outcome: Outcome, body: dict[str, Any]) -> Outcome:
    if outcome.verdict is Verdict.PASS and not isinstance(body.get("error"), dict):
        return failed(f"{outcome.explanation}, without an error object")
    return outcome


async def probe_new_items(subject: Subject, name: str) -> Outcome:
    """Items to add to a conversation: none, no list, or too many."""
    made = await subject.fetch("POST", "/conversations", {})
    unserved = find_unserved(made, "conversations")
    if unserved is not None:
        return unserved
    bodies: dict[str, dict[str, Any]] = {
        "empty_array": {"items": []},
        "array_above_max_length": {"items": [_message()] * 21},
        "missing_required_parameter": {},
    }
    conversation_id = made.object.get("id")
    if not isinstance(conversation_id, str):
        return undecided("the conversation has no id")
    fetched = await subject.fetch("POST", f"/conversations/{conversation_id}/items", bodies[name])
    return expect_refusal(fetched, ERRORS[name], code=name, names=("items",))


def _make(name: str, probe: Callable[..., Any], source: str = _ERRORS, told: str = "") -> Requirement:
    promise = (
        told or f"{ERRORS[name][0].upper()}{ERRORS[name][1:]}: refused with the API's status and by name."
    )
    return Requirement(f"errors.{name}", "errors", source, promise, probe, (f"error:{name}",))


REQUIREMENTS: tuple[Requirement, ...] = (
    *(_make(case.name, partial(probe_error, case)) for case in ERROR_CASES),
    _make("response_not_found", probe_unknown_response),
    _make("conversation_not_found", probe_unknown_conversation, _CONVERSATIONS),
    _make("prompt_not_found", probe_unknown_prompt),
    _make("mutually_exclusive_parameters", probe_exclusive),
    _make(
        "lone_reasoning",
        probe_lone_reasoning,
        told="A reasoning item with nothing after it is refused, or kept as it was sent.",
    ),
    _make("cursor_not_found", probe_cursor),
    _make("invalid_limit", probe_limit),
    _make("unknown_url", probe_url, "ours: every error has the API's shape"),
    _make("method_not_allowed", probe_method, "ours: every error has the API's shape"),
    *(
        _make(name, partial(probe_new_items, name=name), _CONVERSATIONS)
        for name in ("empty_array", "array_above_max_length", "missing_required_parameter")
    ),
)
