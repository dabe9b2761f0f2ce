"""Probes of conversations: their eight routes, and what a response does in one.

Invariant: a server that has no conversations is undecided, never guilty.
"""

import asyncio
from typing import Any

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.requirements.judging import dig, expect_refusal, find_unserved, holds, read_objects
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import (
    GREETING,
    LONG_TASK,
    QUESTION,
    make_output,
    make_reading,
    plant,
)
from antiphon.checker.subject import Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import (
    Outcome,
    Verdict,
    failed,
    judge_memory,
    passed,
    unasked,
    undecided,
)

_API = "OpenAI API reference, Conversations"
#: Until a background response that holds a conversation is given up.
POLLS = 200
POLL_S = 0.05
#: Output budget of a response in the background.
JOB_TOKENS = 400
#: What a note says where an answer ended too soon to be met while it ran.
SLOWER = "an answer that takes a while"


async def make_conversation(subject: Subject, body: Any = None) -> str:
    """The id of a new conversation; raises `UndecidedError` where there can be none."""
    made = await subject.fetch("POST", "/conversations", {} if body is None else body)
    unserved = find_unserved(made, "conversations")
    if unserved is not None:
        raise UndecidedError(unserved.explanation, unserved.needs)
    found = made.object.get("id")
    if made.refusal is not None or not isinstance(found, str) or not found:
        raise UndecidedError(f"no conversation could be made ({made.refusal or 'it has no id'})")
    return found


async def list_items(subject: Subject, conversation: str, query: str = "order=asc&limit=100") -> list[Any]:
    """The items of a conversation; raises `UndecidedError` where they cannot be listed."""
    page = await subject.fetch("GET", f"/conversations/{conversation}/items?{query}")
    data = page.object.get("data")
    if page.refusal is not None or not isinstance(data, list):
        raise UndecidedError(f"the items cannot be listed ({page.refusal or 'no list'})")
    return [item for item in data if isinstance(item, dict)]


def _tell_types(items: Any) -> str:
    return ", ".join(f"{item.get('type')}/{item.get('role')}" for item in read_objects(items)) or "none"


async def probe_create(subject: Subject) -> Outcome:
    """An empty one and one with items and metadata: the object, and the items in their order."""
    empty = await subject.fetch("POST", "/conversations", {})
    unserved = find_unserved(empty, "conversations")
    if unserved is not None:
        return unserved
    if empty.refusal is not None:
        return failed(f"an empty conversation is refused ({empty.refusal})")
    wanted = {"object": "conversation", "metadata": {}}
    if not holds(empty.object, wanted) or type(empty.object.get("created_at")) is not int:
        return failed(
            f"a new conversation is {sorted(empty.object)}, without object, created_at or metadata {{}}"
        )
    items = [user("First."), user("Second.")]
    conversation = await make_conversation(subject, {"items": items, "metadata": {"topic": "vaults"}})
    read = await subject.fetch("GET", f"/conversations/{conversation}")
    if read.object.get("metadata") != {"topic": "vaults"}:
        return failed(f"the metadata of a new conversation is {read.object.get('metadata')!r}")
    listed = await list_items(subject, conversation)
    if not holds(listed, items):
        return failed(f"a conversation made with two messages has {_tell_types(listed)}")
    return passed("made empty and with items, which are listed in their order")


async def probe_retrieve(subject: Subject) -> Outcome:
    """GET shows what creation gave."""
    made = await subject.fetch("POST", "/conversations", {"metadata": {"topic": "vaults"}})
    unserved = find_unserved(made, "conversations")
    if unserved is not None:
        return unserved
    read = await subject.fetch("GET", f"/conversations/{made.object.get('id')}")
    if read.refusal is not None:
        return failed(f"a conversation cannot be read ({read.refusal})")
    if read.object != made.object:
        return failed("GET shows another conversation than was made")
    return passed("GET shows the conversation as it was made")


async def probe_update(subject: Subject) -> Outcome:
    """New metadata takes the place of the old."""
    conversation = await make_conversation(subject, {"metadata": {"old": "1"}})
    answer = await subject.fetch("POST", f"/conversations/{conversation}", {"metadata": {"new": "2"}})
    if answer.refusal is not None:
        return failed(f"the metadata cannot be changed ({answer.refusal})")
    read = await subject.fetch("GET", f"/conversations/{conversation}")
    found = read.object.get("metadata")
    if found != {"new": "2"}:
        return failed(f"after the change the metadata is {found!r}")
    return passed("the new metadata stands in the place of the old")


async def probe_delete(subject: Subject) -> Outcome:
    """A deleted conversation is told to be deleted, and gone; a second time it is not found."""
    conversation = await make_conversation(subject)
    gone = await subject.fetch("DELETE", f"/conversations/{conversation}")
    wanted = {"id": conversation, "object": "conversation.deleted", "deleted": True}
    if gone.refusal is not None or not holds(gone.object, wanted):
        return failed(f"DELETE is answered by {gone.refusal or gone.object}")
    for method in ("GET", "DELETE"):
        outcome = expect_refusal(
            await subject.fetch(method, f"/conversations/{conversation}"),
            f"{method} after DELETE",
            status=404,
        )
        if outcome.verdict is not Verdict.PASS:
            return outcome
    return passed("deleted, then not found")


async def probe_add(subject: Subject) -> Outcome:
    """Two items more: the answer lists them alone, in order, with ids."""
    conversation = await make_conversation(subject, {"items": [user("First.")]})
    items = [user("Second."), user("Third.")]
    added = await subject.fetch("POST", f"/conversations/{conversation}/items", {"items": items})
    data = added.object.get("data")
    if added.refusal is not None or not holds(data, items):
        return failed(f"the answer to two new items is {added.refusal or _tell_types(data)}")
    if any(not isinstance(item.get("id"), str) for item in read_objects(data)):
        return failed("a new item has no id")
    listed = await list_items(subject, conversation)
    if not holds(listed, [user("First."), *items]):
        return failed(f"after two new items the conversation has {_tell_types(listed)}")
    return passed("the answer lists the new items, and the conversation all of them")


async def probe_list(subject: Subject) -> Outcome:
    """Three items page by page, newest first by default and oldest first: each once, and the cursors are right."""
    texts = ["First.", "Second.", "Third."]
    conversation = await make_conversation(subject, {"items": [user(text) for text in texts]})
    for order, wanted in (("", texts[::-1]), ("order=asc&", texts)):
        found: list[str] = []
        after = ""
        for _ in range(len(texts) + 1):
            path = f"/conversations/{conversation}/items?{order}limit=2{after}"
            page = await subject.fetch("GET", path)
            data = page.object.get("data")
            if page.refusal is not None or not isinstance(data, list) or not data:
                return failed(f"a page of items is {page.refusal or 'empty'}")
            ids = [dig(item, "id") for item in data]
            if (page.object.get("first_id"), page.object.get("last_id")) != (ids[0], ids[-1]):
                return failed("first_id and last_id of a page are not those of its items")
            found += [_read_text(item) for item in data]
            if page.object.get("has_more") is not True:
                break
            after = f"&after={ids[-1]}"
        if found != wanted:
            told = "oldest first" if order else "newest first, the default,"
            return failed(f"{told} the pages hold {', '.join(found)}, not {', '.join(wanted)}")
    empty = await make_conversation(subject)
    page = await subject.fetch("GET", f"/conversations/{empty}/items")
    if not holds(
        page.object, {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    ):
        return failed("the list of an empty conversation is not an empty page with null ids")
    return passed("each item comes once, in both directions, and an empty list has null ids")


def _read_text(item: Any) -> str:
    content = item.get("content") if isinstance(item, dict) else None
    parts = content if isinstance(content, list) else []
    return " ".join(str(part.get("text")) for part in parts if isinstance(part, dict))


async def probe_get_item(subject: Subject) -> Outcome:
    """One item by its id; an unknown one is not found."""
    conversation = await make_conversation(subject, {"items": [user("First."), user("Second.")]})
    listed = await list_items(subject, conversation)
    if not listed:
        return failed("the conversation lists no items")
    one = await subject.fetch("GET", f"/conversations/{conversation}/items/{listed[-1].get('id')}")
    if one.refusal is not None or one.object != listed[-1]:
        return failed(f"an item by its id is {one.refusal or one.object}")
    unknown = await subject.fetch("GET", f"/conversations/{conversation}/items/{subject.make_id('msg')}")
    outcome = expect_refusal(unknown, "an unknown item of a conversation", status=404)
    if outcome.verdict is not Verdict.PASS:
        return outcome
    return passed("an item is read by its id, and an unknown one is not found")


async def probe_delete_item(subject: Subject) -> Outcome:
    """A call is deleted: the answer is the conversation, and neither the call nor its output is left alone."""
    call: Item = {"type": "function_call", "call_id": "call_1", "name": "open_vault", "arguments": "{}"}
    conversation = await make_conversation(
        subject, {"items": [user("First."), call, make_output("call_1", "4711"), user("Last.")]}
    )
    listed = await list_items(subject, conversation)
    found = next((item.get("id") for item in listed if item.get("type") == "function_call"), None)
    answer = await subject.fetch("DELETE", f"/conversations/{conversation}/items/{found}")
    if answer.refusal is not None or not holds(answer.object, {"id": conversation, "object": "conversation"}):
        return failed(
            f"deleting an item is answered by {answer.refusal or answer.object}, not the conversation"
        )
    left = await list_items(subject, conversation)
    if any(item.get("type") == "function_call" for item in left):
        return failed("the deleted item is still listed")
    if not holds(left, [user("First."), user("Last.")]):
        return failed(f"after the call was deleted these are left: {_tell_types(left)}")
    after = await subject.create([user(GREETING)], conversation=conversation)
    if isinstance(after, Refusal):
        return failed(f"after a deletion the conversation cannot go on ({after})")
    return passed("the item is gone with its other half, and the conversation goes on")


async def probe_twice(subject: Subject) -> Outcome:
    """An item that stands in the conversation is added again by its id."""
    conversation = await make_conversation(subject, {"items": [user("First.")]})
    listed = await list_items(subject, conversation)
    body = {"items": [{**user("Again."), "id": listed[0].get("id")}]} if listed else {}
    fetched = await subject.fetch("POST", f"/conversations/{conversation}/items", body)
    return expect_refusal(fetched, "an item that is there already", code="item_already_in_conversation")


async def probe_links(subject: Subject) -> Outcome:
    """An item of one conversation is added to another by its id: its stored content stands there, not the sent one."""
    first = await make_conversation(subject, {"items": [user("First.")]})
    listed = await list_items(subject, first)
    if not listed or not isinstance(listed[0].get("id"), str):
        return undecided("the first conversation lists no item with an id")
    second = await make_conversation(subject)
    body = {"items": [{**user("Something else."), "id": listed[0]["id"]}]}
    added = await subject.fetch("POST", f"/conversations/{second}/items", body)
    if added.refusal is not None:
        return failed(f"an item that is stored cannot be added to another conversation ({added.refusal})")
    found = await list_items(subject, second)
    if not holds(found, [user("First.")]):
        return failed("an item that is stored was added with the content that was sent along")
    return passed("the stored item stands in both conversations")


async def probe_continues(subject: Subject) -> Outcome:
    """A word in one response, the question in the next, by the conversation; with the full history; with none."""
    conversation = await make_conversation(subject)
    word = subject.make_word()
    told, question = plant(word), user(QUESTION)
    first = await subject.create([told], conversation=conversation)
    if isinstance(first, Refusal):
        return failed(f"a response in a conversation is refused ({first})")
    if first.body.get("conversation") != {"id": conversation}:
        return failed(f"the response says conversation {first.body.get('conversation')!r}")
    second = await subject.create([question], conversation={"id": conversation})
    if isinstance(second, Refusal):
        return failed(f"a conversation given as an object is refused ({second})")
    full = await subject.ask([told, *first.output, question])
    none = await subject.ask([question])
    return judge_memory(*(make_reading(answer, word) for answer in (second, full, none)))


async def probe_appends(subject: Subject) -> Outcome:
    """Input and output of a response stand in the conversation after it, and the response names no parent."""
    conversation = await make_conversation(subject)
    answer = await subject.create([user(GREETING)], conversation=conversation)
    if isinstance(answer, Refusal):
        return failed(f"a response in a conversation is refused ({answer})")
    listed = await list_items(subject, conversation)
    wanted = [item.get("id") for item in answer.output]
    if not listed or not holds(listed[0], user(GREETING)):
        return failed(f"after a response the conversation has {_tell_types(listed)}, not its input first")
    if [item.get("id") for item in listed[1:]] != wanted:
        return failed("after a response the conversation does not end with its output items")
    return passed("input and output were added in their order", items=len(listed))


async def probe_not_stored(subject: Subject) -> Outcome:
    """store:false in a conversation: it is read, and nothing is added."""
    word = subject.make_word()
    conversation = await make_conversation(subject, {"items": [plant(word)]})
    before = await list_items(subject, conversation)
    question = user(QUESTION)
    answer = await subject.create([question], conversation=conversation, store=False)
    if isinstance(answer, Refusal):
        return failed(f"store:false in a conversation is refused ({answer})")
    after = await list_items(subject, conversation)
    if after != before:
        return failed(f"store:false added to the conversation: {_tell_types(after)}")
    none = await subject.ask([question])
    if answer.tokens is not None and none.tokens is not None and answer.tokens <= none.tokens:
        return failed("store:false in a conversation did not read its history")
    return passed("the history was read, and nothing was added")


async def probe_exclusive(subject: Subject) -> Outcome:
    """A real parent and a real conversation at once."""
    conversation = await make_conversation(subject)
    first = await subject.ask([user(GREETING)])
    body = {
        "model": subject.model,
        "input": GREETING,
        "previous_response_id": first.id,
        "conversation": conversation,
    }
    fetched = await subject.fetch("POST", "/responses", body)
    return expect_refusal(
        fetched, "a parent together with a conversation", code="mutually_exclusive_parameters"
    )


async def probe_locked(subject: Subject) -> Outcome:
    """A second response in a conversation whose first one runs in the background."""
    conversation = await make_conversation(subject)
    first = await subject.fetch(
        "POST",
        "/responses",
        make_job(subject, LONG_TASK, conversation=conversation),
    )
    if first.refusal is not None:
        return unasked(
            "a server that works in the background", f"nothing can run meanwhile ({first.refusal})"
        )
    response_id = first.object.get("id")
    seen = await list_items(subject, conversation)
    second = await subject.create([user(GREETING)], conversation=conversation)
    running = (await subject.fetch("GET", f"/responses/{response_id}")).object.get("status")
    await subject.fetch("POST", f"/responses/{response_id}/cancel")
    if isinstance(second, Refusal):
        if second.code == "conversation_locked":
            if seen and running in ("queued", "in_progress"):
                return failed("items of a running response stand in the conversation before its end")
            told = f"refused while the first one runs ({second})"
            return passed(told, http_status=second.status, code=second.code)
        return failed(f"refused, but not by conversation_locked ({second})")
    if running in ("queued", "in_progress"):
        return failed("a second response ran in the conversation while the first one was running")
    return unasked(SLOWER, "the first response had ended before the second one could meet it")


def make_job(subject: Subject, task: str, **fields: Any) -> dict[str, Any]:
    """A request that is to be answered in the background, long enough to be met while it runs."""
    return subject.make_body(input=task, background=True, max_output_tokens=JOB_TOKENS, **fields)


async def wait_for_end(subject: Subject, response_id: Any) -> dict[str, Any]:
    """The response once it is neither queued nor running; raises `UndecidedError` where it does not end."""
    for poll in range(POLLS):
        found = (await subject.fetch("GET", f"/responses/{response_id}")).object
        if found.get("status") not in ("queued", "in_progress"):
            return found
        await asyncio.sleep(min(0.002 * 2**poll, POLL_S))
    raise UndecidedError("the response did not end in time")


async def probe_chain_leaves(subject: Subject) -> Outcome:
    """A response that continues one of a conversation by id is in no conversation, and adds nothing to it."""
    conversation = await make_conversation(subject)
    first = await subject.create([user(GREETING)], conversation=conversation)
    if isinstance(first, Refusal):
        return failed(f"a response in a conversation is refused ({first})")
    before = await list_items(subject, conversation)
    second = await subject.create([user(GREETING)], previous=first.id)
    if not isinstance(second, Answer):
        return undecided(f"a response of a conversation cannot be continued by id ({second})")
    if second.body.get("conversation") is not None:
        return failed("a response continued by id says that it is in the conversation")
    if await list_items(subject, conversation) != before:
        return failed("a response continued by id added to the conversation")
    return passed("a branch by id is in no conversation")


_ROWS: tuple[tuple[str, str, Any, tuple[str, ...]], ...] = (
    (
        "create",
        "A conversation is made empty, or with items and metadata, which stand in it.",
        probe_create,
        ("endpoint:POST /conversations",),
    ),
    (
        "retrieve",
        "A conversation is read as it was made.",
        probe_retrieve,
        ("endpoint:GET /conversations/{id}",),
    ),
    (
        "update",
        "New metadata takes the place of the old.",
        probe_update,
        ("endpoint:POST /conversations/{id}",),
    ),
    (
        "delete",
        "A deleted conversation is gone, and a second deletion finds nothing.",
        probe_delete,
        ("endpoint:DELETE /conversations/{id}",),
    ),
    (
        "add-items",
        "Items are added in their order, and the answer lists them alone.",
        probe_add,
        ("endpoint:POST /conversations/{id}/items",),
    ),
    (
        "list-items",
        "Items are listed page by page, newest first by default, each once.",
        probe_list,
        ("endpoint:GET /conversations/{id}/items",),
    ),
    (
        "get-item",
        "An item is read by its id, and an unknown one is not found.",
        probe_get_item,
        ("endpoint:GET /conversations/{id}/items/{item_id}",),
    ),
    (
        "delete-item",
        "A deleted item is gone together with its call or output, and the answer is the conversation.",
        probe_delete_item,
        ("endpoint:DELETE /conversations/{id}/items/{item_id}",),
    ),
    (
        "item-twice",
        "An item that stands in the conversation is not added again.",
        probe_twice,
        ("error:item_already_in_conversation",),
    ),
    (
        "links-item",
        "An item that is stored already is added to another conversation as it is stored.",
        probe_links,
        ("endpoint:POST /conversations/{id}/items",),
    ),
    (
        "continues",
        "A response in a conversation shows the model everything before it.",
        probe_continues,
        ("field:conversation", "field:conversation.id"),
    ),
    (
        "appends",
        "A response adds its input and output to the conversation.",
        probe_appends,
        ("field:conversation",),
    ),
    (
        "store-false",
        "A response with store:false reads the conversation and adds nothing.",
        probe_not_stored,
        ("field:conversation", "field:store"),
    ),
    (
        "exclusive",
        "previous_response_id and conversation together are refused.",
        probe_exclusive,
        ("error:mutually_exclusive_parameters",),
    ),
    (
        "locked",
        "One response runs in a conversation at a time, and its items show at its end.",
        probe_locked,
        ("error:conversation_locked",),
    ),
    (
        "branch-by-id",
        "A response continued by id is in no conversation.",
        probe_chain_leaves,
        ("field:conversation",),
    ),
)


REQUIREMENTS: tuple[Requirement, ...] = tuple(
    Requirement(f"conversations.{name}", "conversations", _API, told, probe, covers)
    for name, told, probe, covers in _ROWS
)
