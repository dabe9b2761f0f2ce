"""Probes of the other endpoints: lists and their pages, token counts, models, what is refused and what is ours.

Invariant: an endpoint that a server does not have is no fault, where it says so by 404 or 405 or names it.
"""

from typing import Any

from antiphon.checker.answers import Refusal
from antiphon.checker.requirements.judging import dig, expect_refusal, find_unserved, holds, read_list
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import GREETING, TOOL, plant
from antiphon.checker.subject import Fetched, NoSocketError, Subject, user
from antiphon.checker.verdicts import Outcome, Verdict, failed, passed, unasked, undecided

_API = "OpenAI API reference, Responses"
_OURS = "ours: an endpoint of Antiphon's own"


async def probe_pages(subject: Subject) -> Outcome:
    """Three input items page by page in both directions: each once, in order, cursors right."""
    texts = ["First.", "Second.", GREETING]
    answer = await subject.ask([user(text) for text in texts])
    for order, wanted in (("", texts[::-1]), ("order=asc&", texts)):
        found: list[Any] = []
        after = ""
        for _ in range(len(texts) + 1):
            page = await subject.fetch("GET", f"/responses/{answer.id}/input_items?{order}limit=2{after}")
            data = page.object.get("data")
            if page.refusal is not None or not isinstance(data, list) or not data:
                return failed(f"a page of input items is {page.refusal or 'empty'}")
            ids = [dig(item, "id") for item in data]
            if page.object.get("object") != "list" or page.object.get("last_id") != ids[-1]:
                return failed(
                    "a page of input items is no list object, or its last_id is not its last item's"
                )
            found += [dig(item, "content.0.text") for item in data]
            if page.object.get("has_more") is not True:
                break
            after = f"&after={ids[-1]}"
        if found != wanted:
            return failed(f"{'oldest' if order else 'newest'} first the pages hold {found}, not {wanted}")
    return passed("each item comes once, newest first by default, and oldest first where asked")


async def probe_count(subject: Subject) -> Outcome:
    """The count of an input is the usage of the same request; by id, with tools and instructions, too."""
    first = await subject.ask([plant(subject.make_word())])
    bodies: tuple[dict[str, Any], ...] = (
        {"input": GREETING},
        {"input": GREETING, "previous_response_id": first.id},
        {"input": GREETING, "instructions": "Be brief.", "tools": [TOOL], "tool_choice": "auto"},
    )
    counts = []
    for body in bodies:
        counted = await subject.fetch("POST", "/responses/input_tokens", {"model": subject.model, **body})
        unserved = find_unserved(counted, "/responses/input_tokens")
        if unserved is not None:
            return unserved
        count = counted.object.get("input_tokens")
        if counted.refusal is not None or counted.object.get("object") != "response.input_tokens":
            return failed(f"the count is {counted.refusal or sorted(counted.object)}")
        answer, _ = await subject.send(model=subject.model, **body)
        if isinstance(answer, Refusal):
            return undecided(f"the counted request is refused ({answer})")
        if answer.tokens is None:
            return undecided("the server tells no usage to compare the count with")
        ours = counted.object.get("antiphon")
        if count != answer.tokens and isinstance(ours, dict) and ours.get("estimated") is True:
            told = (
                f"{count} input tokens were estimated, and said to be an estimate; {answer.tokens} were used"
            )
            return unasked("a model server that counts", told, counted=count)
        if count != answer.tokens:
            return failed(f"{count} input tokens were counted, {answer.tokens} used", counted=count)
        counts.append(count)
    return passed(f"counted as used: {', '.join(map(str, counts))}")


async def probe_count_rejects(subject: Subject) -> Outcome:
    """What makes no prompt is no parameter of a count."""
    outcome = passed("nothing was tried")
    rejected: dict[str, Any] = {"store": True, "stream": True, "include": [], "max_output_tokens": 100}
    for name, value in rejected.items():
        body = {"model": subject.model, "input": GREETING, name: value}
        fetched = await subject.fetch("POST", "/responses/input_tokens", body)
        unserved = find_unserved(fetched, "/responses/input_tokens")
        if unserved is not None:
            return unserved
        outcome = expect_refusal(fetched, f"{name} in a count", code="unknown_parameter", names=(name,))
        if outcome.verdict is not Verdict.PASS:
            return outcome
    return outcome


async def probe_compact(subject: Subject) -> Outcome:
    """The window compacted on demand: user messages, then one compaction item; or the route is refused."""
    body = {"model": subject.model, "input": [user("The vault is called door."), user(GREETING)]}
    fetched = await subject.fetch("POST", "/responses/compact", body)
    if fetched.refusal is not None:
        return _judge_clear(fetched, "compact")
    output = fetched.object.get("output")
    types = [dig(item, "type") for item in output] if isinstance(output, list) else []
    if fetched.object.get("object") == "response.compaction" and types[-1:] == ["compaction"]:
        return passed("answered by user messages and one compaction item", items=len(types))
    return failed(
        f"answered as {fetched.object.get('object')!r} with {types}, without a compaction item at the end"
    )


async def probe_socket(subject: Subject) -> Outcome:
    """An upgrade to a WebSocket: taken, or refused in words."""
    try:
        async with subject.open_socket():
            return passed("the upgrade is taken")
    except NoSocketError as answer:
        return _judge_no_socket(answer.refusal)


def _judge_no_socket(refusal: Refusal) -> Outcome:
    if refusal.status < 300:
        return failed(f"answered with status {refusal.status}, neither done nor refused")
    # A bare text has neither code nor param, which an error object of the API always may.
    told = f"not served, and refused clearly ({refusal})"
    if refusal.status in (404, 405, 426, 501) or "ebsocket" in refusal.message.lower():
        return passed(told, http_status=refusal.status)
    return failed(
        f"refused without saying that it is about WebSocket ({refusal})", http_status=refusal.status
    )


def _judge_clear(fetched: Fetched, *names: str) -> Outcome:
    """Refused by a 4xx with an error object that speaks of it, or by a plain 404 or 405 for an unknown route."""
    refusal = fetched.refusal
    if refusal is None:
        return failed(f"answered with status {fetched.status}, neither done nor refused")
    if refusal.status >= 500 and refusal.status != 501:
        return failed(f"not refused, but broken ({refusal})", http_status=refusal.status)
    has_object = isinstance(fetched.object.get("error"), dict) and bool(refusal.message)
    if has_object and (refusal.status in (404, 405, 426, 501) or any(n in refusal.message for n in names)):
        return passed(f"not served, and refused clearly ({refusal})", http_status=refusal.status)
    return failed(f"refused without an error object that says what is not served ({refusal})")


async def probe_models(subject: Subject) -> Outcome:
    """The list of models has the one that answers here, and each is a model object."""
    fetched = await subject.fetch("GET", "/models")
    data = fetched.object.get("data")
    if fetched.refusal is not None or fetched.object.get("object") != "list" or not isinstance(data, list):
        return failed(f"the list of models is {fetched.refusal or sorted(fetched.object)}")
    wrong = [model for model in data if not _is_model(model)]
    if wrong:
        return failed(f"an entry of the list is no model object: {str(wrong[0])[:100]}")
    if subject.model not in [dig(model, "id") for model in data]:
        return failed("the list of models does not have the one that answers")
    return passed("the model that answers is listed", models=len(data))


def _is_model(value: Any) -> bool:
    wanted = isinstance(value, dict) and value.get("object") == "model" and isinstance(value.get("id"), str)
    return bool(wanted and type(value.get("created")) is int and isinstance(value.get("owned_by"), str))


async def probe_model(subject: Subject) -> Outcome:
    """One model by its name; an unknown one is not found."""
    fetched = await subject.fetch("GET", f"/models/{subject.model}")
    if (
        fetched.refusal is not None
        or fetched.object.get("id") != subject.model
        or not _is_model(fetched.object)
    ):
        return failed(f"the model by its name is {fetched.refusal or fetched.object}")
    unknown = await subject.fetch("GET", f"/models/{subject.make_word()}")
    outcome = expect_refusal(unknown, "an unknown model", status=404, code="model_not_found")
    if outcome.verdict is not Verdict.PASS:
        return outcome
    return passed("the model is read by its name, and an unknown one is not found")


async def probe_delete_model(subject: Subject) -> Outcome:
    """Deleting an unknown model finds nothing; that one is refused is as clear."""
    fetched = await subject.fetch("DELETE", f"/models/{subject.make_word()}")
    return _judge_clear(fetched, "model")


async def probe_chat(subject: Subject) -> Outcome:
    """A chat completion: passed on to the model's server, or refused by the model's name or the route's."""
    body = {"model": subject.model, "messages": [{"role": "user", "content": GREETING}], "max_tokens": 16}
    fetched = await subject.fetch("POST", "/chat/completions", body)
    if fetched.refusal is not None:
        return _judge_clear(fetched, "chat/completions", subject.model, "model")
    if holds(fetched.object, {"object": "chat.completion"}) and fetched.object.get("choices"):
        return passed("answered by a chat completion")
    return failed(f"answered, and not by a chat completion: {sorted(fetched.object)}")


async def probe_window(subject: Subject) -> Outcome:
    """What the model saw of a chain: its items in order with their tokens, or no such route."""
    first = await subject.ask([user("The vault is called door.")])
    second = await subject.ask([user(GREETING)], previous=first.id)
    fetched = await subject.fetch("GET", f"/responses/{second.id}/window")
    if fetched.refusal is not None:
        return _judge_clear(fetched, "window")
    # Whatever its form: what was said in both rounds stands in it, and the items by their ids.
    ids = [item.get("id") for item in first.output if isinstance(item.get("id"), str)]
    missing = [
        text
        for text in ("The vault is called door.", GREETING, *ids)
        if str(text).encode() not in fetched.raw
    ]
    if missing:
        return failed(f"the window of a chain does not show {', '.join(map(str, missing))}")
    return passed("the window shows the items of the whole chain")


async def probe_stored_item(subject: Subject) -> Outcome:
    """An item of an answer by its id alone, and one that there is not; or no such route."""
    first = await subject.ask([user(GREETING)])
    wanted = next((item for item in first.output if isinstance(item.get("id"), str)), None)
    if wanted is None:
        return undecided("the answer has no item with an id")
    fetched = await subject.fetch("GET", f"/items/{wanted['id']}")
    if fetched.refusal is not None:
        return _judge_clear(fetched, "items")
    if fetched.object != wanted:
        return failed("the item by its id is not the one of the answer")
    unknown = await subject.fetch("GET", f"/items/{subject.make_id('msg')}")
    outcome = expect_refusal(unknown, "an unknown item", status=404)
    if outcome.verdict is not Verdict.PASS:
        return outcome
    return passed("the item is read by its id, and an unknown one is not found")


async def probe_item_range(subject: Subject) -> Outcome:
    """From an item of a first answer to one of its continuation: all between them in their order; or no such route."""
    first = await subject.ask([user("The vault is called door.")])
    second = await subject.ask([user(GREETING)], previous=first.id)
    ends = [answer.output[0].get("id") if answer.output else None for answer in (first, second)]
    if not all(isinstance(end, str) for end in ends):
        return undecided("the answers have no items with an id")
    fetched = await subject.fetch("GET", f"/items?from={ends[0]}&to={ends[1]}")
    if fetched.refusal is not None:
        return _judge_clear(fetched, "items")
    data = [item for item in read_list(fetched.object.get("data")) if isinstance(item, dict)]
    wanted = [first.output[0], *first.output[1:], user(GREETING), second.output[0]]
    if len(data) != len(wanted) or not all(map(holds, data, wanted)):
        return failed(
            f"the range from an answer to the next holds {len(data)} items, not what stands between them"
        )
    return passed("the range holds both answers and the message between them", items=len(data))


async def probe_openapi(subject: Subject) -> Outcome:
    """The OpenAPI document, where there is one, has the route that answers here."""
    fetched = await subject.fetch_root("GET", "/openapi.json")
    if fetched.refusal is not None:
        return passed(f"there is none ({fetched.refusal})")
    paths = fetched.object.get("paths")
    if isinstance(paths, dict) and any(path.endswith("/responses") for path in paths):
        return passed("it describes the route of responses", paths=len(paths))
    return failed("the document at /openapi.json does not describe the route of responses")


async def probe_health(subject: Subject) -> Outcome:
    """A server that answers requests says that it is well, or has no such route."""
    return await _probe_status(subject, "/health")


async def probe_ready(subject: Subject) -> Outcome:
    """A server that answers requests says that it is ready, or has no such route."""
    return await _probe_status(subject, "/ready")


async def _probe_status(subject: Subject, path: str) -> Outcome:
    fetched = await subject.fetch_root("GET", path)
    if fetched.status >= 500:
        return failed(f"{path} says {fetched.status}, and the server answers requests")
    return passed(f"{path} says {fetched.status}", http_status=fetched.status)


_ROWS: tuple[tuple[str, str, str, Any, str], ...] = (
    (
        "input-items-pages",
        f"{_API}: list input items",
        "Input items are listed page by page, newest first by default, each once.",
        probe_pages,
        "GET /responses/{id}/input_items",
    ),
    (
        "input-tokens",
        f"{_API}: input_tokens",
        "The count of an input equals the usage of the same request.",
        probe_count,
        "POST /responses/input_tokens",
    ),
    (
        "input-tokens-rejects",
        f"{_API}: input_tokens",
        "A count refuses what makes no prompt: store, stream, include, max_output_tokens.",
        probe_count_rejects,
        "POST /responses/input_tokens",
    ),
    (
        "compact",
        "OpenAI guide, Compaction",
        "A window is compacted into user messages and one compaction item, or the route is refused clearly.",
        probe_compact,
        "POST /responses/compact",
    ),
    (
        "websocket",
        "OpenAI guide, WebSocket mode",
        "An upgrade to a WebSocket is taken, or refused clearly.",
        probe_socket,
        "WebSocket /responses",
    ),
    (
        "models",
        "OpenAI API reference, Models",
        "The models are listed, with the one that answers.",
        probe_models,
        "GET /models",
    ),
    (
        "model",
        "OpenAI API reference, Models",
        "A model is read by its name, and an unknown one is not found.",
        probe_model,
        "GET /models/{model}",
    ),
    (
        "delete-model",
        "OpenAI API reference, Models",
        "An unknown model cannot be deleted, in clear words.",
        probe_delete_model,
        "DELETE /models/{model}",
    ),
    (
        "chat-completions",
        "OpenAI API reference, Chat",
        "A chat completion is answered, or refused clearly.",
        probe_chat,
        "POST /chat/completions",
    ),
    (
        "window",
        _OURS,
        "The window of a response shows what the model saw of its chain, where there is such a route.",
        probe_window,
        "GET /responses/{id}/window",
    ),
    (
        "stored-item",
        _OURS,
        "A stored item is read by its id alone, where there is such a route.",
        probe_stored_item,
        "GET /items/{item_id}",
    ),
    (
        "item-range",
        _OURS,
        "The stored items between two ids of one chain are read in their order, where there is such a route.",
        probe_item_range,
        "GET /items",
    ),
    (
        "openapi",
        _OURS,
        "The OpenAPI document, where there is one, describes the route of responses.",
        probe_openapi,
        "GET /openapi.json",
    ),
    (
        "health",
        _OURS,
        "A server that answers says that it is well, where it says so at all.",
        probe_health,
        "GET /health",
    ),
    (
        "ready",
        _OURS,
        "A server that answers says that it is ready, where it says so at all.",
        probe_ready,
        "GET /ready",
    ),
)
REQUIREMENTS: tuple[Requirement, ...] = tuple(
    Requirement(f"endpoints.{name}", "endpoints", source, told, probe, (f"endpoint:{endpoint}",))
    for name, source, told, probe, endpoint in _ROWS
)
