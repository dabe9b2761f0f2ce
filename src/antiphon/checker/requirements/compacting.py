"""Probes of POST /responses/compact: its shape, what it takes, and what its output is worth as the next window.

The two tests of the Open Responses suite on it stand here with their requests and assertions, as does its WebSocket
test that begins with a compaction. A server without the route leaves all of this undecided.
"""

from functools import partial
from typing import Any

from antiphon.checker.answers import Answer, Item
from antiphon.checker.requirements.compaction import find_blob, judge_word, list_types, make, make_history
from antiphon.checker.requirements.continuing import try_words
from antiphon.checker.requirements.judging import dig, expect_refusal, find_unserved, read_list
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.sockets import judge_turn, probe_on_line
from antiphon.checker.requirements.speaking import GREETING, QUESTION, plant
from antiphon.checker.socket_line import SocketLine
from antiphon.checker.subject import Fetched, Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Outcome, failed, passed

_API = "OpenAI API reference, Responses: compact"
_SUITE = "Open Responses, contract 2026-04-24: test {}"
ROUTE = "/responses/compact"
_COVERS = ("endpoint:POST /responses/compact",)
#: Fields of a create request that make no compaction.
_REJECTED: dict[str, Any] = {"stream": False, "store": True, "include": [], "conversation": "conv_0"}
_USAGE = ("input_tokens", "output_tokens", "total_tokens")


async def compact_window(subject: Subject, **fields: Any) -> tuple[dict[str, Any], list[Item]]:
    """The answer of the route, and its output; raises `UndecidedError` where there is none."""
    fetched = await _post(subject, {"model": subject.model, **fields})
    if fetched.refusal is not None:
        raise UndecidedError(f"the server does not compact this window ({fetched.refusal})")
    return fetched.object, [
        item for item in read_list(fetched.object.get("output")) if isinstance(item, dict)
    ]


async def _post(subject: Subject, body: dict[str, Any]) -> Fetched:
    fetched = await subject.fetch("POST", ROUTE, body)
    unserved = find_unserved(fetched, ROUTE)
    if unserved is not None:
        raise UndecidedError(unserved.explanation, unserved.needs)
    return fetched


async def probe_shape(subject: Subject) -> Outcome:
    """Two user messages among other items."""
    word = subject.make_word()
    items = [*make_history(word), user("Which vault is next?")]
    body, output = await compact_window(subject, input=items)
    faults = [
        name
        for name, kind in (("id", str), ("created_at", int), ("output", list), ("usage", dict))
        if not isinstance(body.get(name), kind)
    ]
    faults += [f"usage.{name}" for name in _USAGE if type(dig(body, f"usage.{name}")) is not int]
    if body.get("object") != "response.compaction":
        faults.append(f"object is {body.get('object')!r}")
    if faults:
        return failed(f"missing, or of a wrong type: {', '.join(faults)}")
    if list_types(output) != ["message", "message", "compaction"] or find_blob(output[-1]) is None:
        told = ", ".join(list_types(output))
        return failed(f"the output is {told or 'empty'}, not the two user messages and one compaction item")
    return _judge_messages(output[:-1], [dig(items[0], "content.0.text"), dig(items[-1], "content.0.text")])


def _judge_messages(messages: list[Item], texts: list[Any]) -> Outcome:
    for message, text in zip(messages, texts, strict=True):
        wanted = {"role": "user", "status": "completed"}
        lacking = [name for name, value in wanted.items() if message.get(name) != value]
        if not isinstance(message.get("id"), str):
            lacking.append("id")
        if dig(message, "content.0.type") != "input_text" or dig(message, "content.0.text") != text:
            lacking.append("content")
        if lacking:
            return failed(f"{', '.join(lacking)} of a kept user message is not as it should be")
    return passed("two user messages as they were sent, then one compaction item")


async def probe_continues(subject: Subject) -> Outcome:
    """The output as it came, then a question."""

    async def recall() -> Outcome:
        word = subject.make_word()
        history, question = make_history(word), user(QUESTION)
        _, output = await compact_window(subject, input=history)
        answer = await subject.create([*output, question])
        full = await subject.ask([*history, question])
        return judge_word(word, answer, full, "the output of the route as input")

    return await try_words(recall)


async def probe_by_id(subject: Subject) -> Outcome:
    """What a response's id names, compacted without any input."""

    async def recall() -> Outcome:
        word = subject.make_word()
        told, question = plant(word), user(QUESTION)
        first = await subject.ask([told])
        fetched = await _post(subject, {"model": subject.model, "previous_response_id": first.id})
        if fetched.refusal is not None:
            return failed(f"previous_response_id alone is refused ({fetched.refusal})")
        output = [item for item in read_list(fetched.object.get("output")) if isinstance(item, dict)]
        answer = await subject.create([*output, question])
        full = await subject.ask([told, *first.output, question])
        return judge_word(word, answer, full, "the compaction of a stored response", may_grow=True)

    return await try_words(recall)


async def probe_stateless(subject: Subject) -> Outcome:
    """The id of a compaction: nothing is stored under it."""
    body, _ = await compact_window(subject, input=[user(GREETING)])
    made = body.get("id")
    if not isinstance(made, str):
        return failed("a compaction has no id")
    found = await subject.retrieve(made)
    if isinstance(found, Answer):
        return failed("a compaction can be retrieved as if it were a response")
    again = await subject.create([user(GREETING)], previous=made)
    if isinstance(again, Answer):
        return failed("a compaction can be continued by its id as if it were a response")
    return passed(f"neither retrieved ({found}) nor continued ({again})")


async def probe_rejects(subject: Subject) -> Outcome:
    """Fields that make no compaction, one at a time."""
    outcome = passed("nothing was tried")
    for name, value in _REJECTED.items():
        fetched = await _post(subject, {"model": subject.model, "input": GREETING, name: value})
        outcome = expect_refusal(fetched, f"{name} in a compaction", code="unknown_parameter", names=(name,))
        if outcome.verdict != "pass":
            return outcome
    return outcome


async def probe_nothing(subject: Subject) -> Outcome:
    """Neither input nor a response to compact."""
    fetched = await _post(subject, {"model": subject.model})
    return expect_refusal(fetched, "a compaction of nothing", names=("input",))


# The suite's tests.


async def probe_suite_response(subject: Subject) -> Outcome:
    """Its two messages with a prompt_cache_key."""
    items = [user("Hello, how are you?"), _answer("I am well. What can I do for you?")]
    body, output = await compact_window(subject, input=items, prompt_cache_key="compliance-compact")
    if body.get("object") != "response.compaction":
        return failed(f"object is {body.get('object')!r}")
    faults = [f"{name} is missing" for name in ("id", "created_at", "usage") if body.get(name) is None]
    for index, item in enumerate(output):
        lacking = [name for name in ("id", "type") if not isinstance(item.get(name), str)]
        if item.get("type") == "message" and not isinstance(item.get("status"), str):
            lacking.append("status")
        faults += [f"output[{index}].{name} is missing" for name in lacking]
    if faults:
        return failed("; ".join(faults))
    if not any(find_blob(item) for item in output):
        return failed("the output has no compaction item")
    return passed("a compaction that fits the contract's schema", output_items=len(output))


def _answer(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": text}


async def probe_suite_missing_model(subject: Subject) -> Outcome:
    """No model: 400 or 422."""
    fetched = await _post(subject, {"input": [user("Hello.")]})
    refusal = fetched.refusal
    if refusal is None or refusal.status not in (400, 422):
        return failed(f"answered with status {fetched.status}", http_status=fetched.status)
    return passed(f"refused ({refusal})", http_status=refusal.status)


async def probe_suite_new_chain(subject: Subject, line: SocketLine) -> Outcome:
    """A compaction over HTTP, whose output begins a new chain over WebSocket, with a message after it and no tools."""
    items = [user("My name is Ada."), _answer("Hello, Ada."), user("I like the sea.")]
    _, output = await compact_window(subject, input=items)
    return judge_turn(await line.create([*output, user("Say hello in one word.")], tools=[], store=False))


def _suite(name: str, told: str, probe: Any) -> Requirement:
    return Requirement(
        f"open-responses.{name}",
        "open-responses",
        _SUITE.format(name),
        told,
        probe,
        (*_COVERS, "field:model"),
    )


REQUIREMENTS: tuple[Requirement, ...] = (
    make(
        "compact-shape",
        _API,
        "/responses/compact answers with the user's messages in their order, then one compaction item, and usage.",
        probe_shape,
        *_COVERS,
        "output:compaction",
    ),
    make(
        "compact-continues",
        _API,
        "The output of /responses/compact is the next window: what the user said is in it.",
        probe_continues,
        *_COVERS,
        "item:compaction",
    ),
    make(
        "compact-by-id",
        _API,
        "/responses/compact compacts what previous_response_id names.",
        probe_by_id,
        *_COVERS,
        "field:previous_response_id",
    ),
    make(
        "compact-stateless",
        _API,
        "A compaction is no response: its id can be neither retrieved nor continued.",
        probe_stateless,
        *_COVERS,
    ),
    make(
        "compact-rejects",
        _API,
        "/responses/compact refuses stream, store, include and conversation by their names.",
        probe_rejects,
        *_COVERS,
        "error:unknown_parameter",
    ),
    make(
        "compact-nothing",
        _API,
        "/responses/compact refuses a request with neither input nor previous_response_id.",
        probe_nothing,
        *_COVERS,
        "error:missing_input",
    ),
    _suite(
        "compact-response",
        "The request of the test compact-response is answered by a compaction that fits the contract's schema.",
        probe_suite_response,
    ),
    _suite(
        "compact-missing-model",
        "A compaction without a model is refused with 400 or 422.",
        probe_suite_missing_model,
    ),
    Requirement(
        "websocket.compact-new-chain",
        "websocket",
        "Open Responses compliance suite: websocket-compact-new-chain",
        "The output of /responses/compact begins a new chain over WebSocket.",
        partial(probe_on_line, probe_suite_new_chain),
        (*_COVERS, "endpoint:WebSocket /responses"),
    ),
)
