"""Cases of another server's tests of its compaction, over HTTP: overflow, repair, what goes upstream, who leaves.

Invariant of all of them: a session that compacts goes on, and what was not read or not kept is told.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.context.sealed_window import HEADING
from tests.fake_upstream import (
    MODEL,
    FakeUpstream,
    Reply,
    make_body,
    make_event,
    make_json,
    make_response_stream,
)
from tests.scenarios.compaction_talk import (
    FAILING,
    SUMMARY,
    TRIGGER,
    CompactingHouse,
    Form,
    Item,
    Model,
    call,
    count_tokens,
    find_summary,
    image,
    list_images,
    list_pairs,
    list_texts,
    make_png,
    pair,
    prose,
    read_item,
    read_pass,
    read_passes,
    refuse_length,
    result,
    run,
    said,
    show_prompt,
    system,
    text_part,
    user,
    work,
)
from tests.scenarios.houses import WAIT_S, House, list_codes, open_house

WINDOW_TOKENS = 6_000
SUMMARISE: dict[str, Any] = {"antiphon": {"method": "summary"}}
DUE: dict[str, Any] = {"context_management": [{"type": "compaction", "compact_threshold": 1_000_000}]}
GOAL = "Task GOAL-1."
LATEST = "Then LATEST-2."


def refuse(status: int, message: str, **error: Any) -> Reply:
    """An error answer of a model server."""
    return Reply([make_json({"error": {"message": message, **error}}, status=status)])


# What is an overflow


WORDS = "prompt is too long: 9000, model maximum context length: 3000"
TOO_LONG = [
    refuse(400, f"{WORDS} (ref: 1f2e)"),
    refuse(400, WORDS),
    refuse(400, "Whatever.", code="context_length_exceeded"),
    refuse(413, "Whatever.", code="context_length_exceeded"),
    refuse_length(9_000, 3_000),
    # Some servers answer so where others answer 400.
    refuse(500, WORDS),
]
SOMETHING_ELSE = [
    refuse(429, WORDS),
    refuse(413, "The body is too large."),
    refuse(400, "Tools are odd."),
    refuse(400, f"Bad tool text: '{WORDS}'"),
    refuse(400, "prompt is too long: many, model maximum context length: few"),
    Reply([make_body(f"<p>{WORDS}</p>".encode(), status=400)]),
]


class RefusingModel(Model):
    """Refuses with what it is given, one refusal a request, before it answers."""

    def __init__(self, refusals: list[Reply]) -> None:
        super().__init__()
        self.refusals = list(refusals)

    def __call__(self, request: Any) -> Reply:
        if not self.refusals:
            return super().__call__(request)
        self.refused.append(request)
        return self.refusals.pop(0)


@pytest.mark.parametrize("refusal", TOO_LONG)
def test_a_prompt_whose_length_was_refused_is_compacted_and_sent_once_more(
    tmp_path: Path, refusal: Reply
) -> None:
    """By code or by the words of any known server, in the same response."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(10, 300), user(LATEST)]
        made = await talk.house.make(input=items, **DUE)
        assert read_pass(made)["reason"] == "overflow"
        assert len(talk.model.rounds) == 1
        assert count_tokens(talk.model.rounds[0]) < count_tokens(talk.model.refused[0])

    run(tmp_path, RefusingModel([refusal]), story)


def test_a_prompt_that_was_refused_for_anything_else_is_not_made_shorter(tmp_path: Path) -> None:
    """Not by words inside other words, nor by a status alone: the refusal is passed on."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(10, 300), user(LATEST)]
        for number in range(1, len(SOMETHING_ELSE) + 1):
            answer = await talk.client.post({"model": MODEL, "input": items, **DUE})
            assert answer.error["code"] != "context_length_exceeded", number
            assert len(talk.house.upstream.asked) == number

    run(tmp_path, RefusingModel(SOMETHING_ELSE), story)


# Overflow and repair of a summary


@pytest.mark.parametrize(
    ("way", "spoilers", "forms", "repairs", "source"),
    [
        ("compact", [5_000], ["asked"], 0, "model"),
        ("trigger", [5_000], ["asked"], 0, "model"),
        ("trigger", [5_000], ["broken", "asked"], 1, "model"),
        ("compact", [], ["empty", "asked"], 1, "model"),
        ("compact", [5_000, 4_000], ["asked"], 0, "model"),
        ("trigger", [5_000], ["empty"] * 40, None, "extract"),
        ("compact", [FAILING] * 40, [], 0, "extract"),
    ],
)
def test_a_summary_comes_about_whatever_happens_to_its_requests(
    tmp_path: Path,
    way: str,
    spoilers: list[Reply | int],
    forms: list[Form],
    repairs: int | None,
    source: str,
) -> None:
    """Too long: smaller requests; not a summary: asked once more, with the reason; no model at all: an extract."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(16, 400), user(LATEST), *pair(50, "LATEST-RESULT-3")]
        made = await (talk.compact if way == "compact" else talk.trigger)(items, **SUMMARISE)
        done = read_pass(made)
        assert done["summary"] == source
        if repairs is not None:
            assert done["repairs"] == repairs
        shown = await talk.show(made["output"])
        # The number of calls is bounded, and refused ones count: what could not be read then is said.
        assert ("omitted" in done) == ("could not be read for this summary" in find_summary(shown))
        assert "omitted" not in done or len(spoilers) > 1
        if spoilers and spoilers[0] == 5_000:
            first = count_tokens(talk.model.refused[0])
            assert talk.model.summaries
            assert all(count_tokens(request) < first for request in talk.model.summaries)
        assert GOAL in list_texts(shown, "user")
        assert LATEST in list_texts(shown, "user")
        assert list_pairs(shown)[-1] == ("call_50", "LATEST-RESULT-3")
        assert (SUMMARY in find_summary(shown)) == (source == "model")

    run(tmp_path, Model(spoilers=spoilers, forms=forms), story, window_tokens=9_000)


def test_the_request_that_overflowed_is_never_sent_again(tmp_path: Path) -> None:
    """A server that refuses everything is asked a bounded number of times, each time for less."""

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact([user(GOAL), *work(12, 300)], **SUMMARISE)
        assert read_pass(made)["summary"] == "extract"
        bodies = [request.body for request in talk.model.refused]
        assert len(set(bodies)) == len(bodies)
        assert len(bodies) <= 12

    refusal = refuse(400, "the request exceeds the available context size. try increasing the context size")
    run(tmp_path, Model(spoilers=[refusal] * 40), story, window_tokens=WINDOW_TOKENS)


def test_one_message_that_is_larger_than_the_window_is_cut_to_its_ends(tmp_path: Path) -> None:
    """Nothing can be removed, so its head and its tail are what the model sees, with a notice between them."""

    async def story(talk: CompactingHouse) -> None:
        text = f"HEAD-1 {prose(1, 9_000)} TAIL-2"
        made = await talk.compact([user(text)], **SUMMARISE)
        shown = await talk.show(made["output"])
        told = show_prompt(shown)
        assert "HEAD-1" in told
        assert "TAIL-2" in told
        assert count_tokens(shown) <= WINDOW_TOKENS
        assert any(removal["rung"] == "cut" for removal in read_pass(made)["removed"])

    run(tmp_path, Model(window_tokens=WINDOW_TOKENS), story, window_tokens=WINDOW_TOKENS)


@pytest.mark.parametrize("earlier", [[], pair(1, prose(1, 60))])
def test_a_newest_result_that_is_larger_than_the_window_is_cut_to_its_ends(
    tmp_path: Path, earlier: list[Item]
) -> None:
    """Whatever little history stands before it; the cut names the id by which the whole is fetched."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *earlier, user(LATEST), *pair(50, f"HEAD-1 {prose(3, 2_800)} TAIL-2")]
        allowed: dict[str, Any] = {"context_management": [{"type": "compaction"}]}
        made = await talk.house.make(input=items, **allowed)
        assert "cut" in read_pass(made)["rungs"]
        output = dict(list_pairs(talk.model.rounds[-1]))["call_50"]
        assert output.startswith("HEAD-1")
        assert output.endswith("TAIL-2")
        assert "fc_50r" in output
        whole = await talk.house.get("/v1/items/fc_50r")
        assert whole["output"] == items[-1]["output"]

    run(tmp_path, Model(window_tokens=2_500), story, window_tokens=2_500)


def test_an_image_that_was_chosen_is_sent_once_in_the_next_round(tmp_path: Path) -> None:
    """Also before a server that speaks Responses no item of ours is left in what is sent."""
    png = make_png(3)

    async def story(talk: CompactingHouse) -> None:
        shot = [call(5, "screenshot", page="home"), result(5, [text_part("SHOT-5"), image(png)])]
        made = await talk.compact([user(GOAL), *shot, said("Seen."), *work(12, 300, first=10)], **SUMMARISE)
        shown = await talk.show(made["output"])
        assert list_images(shown) == [png]
        assert read_item(made)["encrypted_content"] not in shown.body.decode()

    run(tmp_path, Model(retain=["SHOT-5"]), story, window_tokens=WINDOW_TOKENS, profile={"sees_images": True})


# Servers that speak Responses themselves


def say(text: str) -> Reply:
    """A whole response of such a server."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 105,
    }
    response = {
        "id": "resp_up",
        "object": "response",
        "status": "completed",
        "output": [item],
        "usage": usage,
    }
    return Reply(
        make_response_stream(
            make_event("response.created", response={"id": "resp_up", "status": "in_progress"}),
            make_event(
                "response.output_item.added",
                output_index=0,
                item={**item, "status": "in_progress", "content": []},
            ),
            make_event("response.content_part.added", **place, part={**part, "text": ""}),
            make_event("response.output_text.delta", **place, delta=text, logprobs=[]),
            make_event("response.output_text.done", **place, text=text, logprobs=[]),
            make_event("response.content_part.done", **place, part=part),
            make_event("response.output_item.done", output_index=0, item=item),
            make_event("response.completed", response=response),
        )
    )


def test_an_item_is_opened_before_a_server_that_speaks_responses(tmp_path: Path) -> None:
    """It is sent the messages, the summary and the retained items, and no compaction item."""

    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S), FakeUpstream(lambda _: say(SUMMARY)) as upstream:
            settings = {
                "endpoints": {"fake": {"url": upstream.url, "dialect": "responses", "profile": "small"}},
                "profiles": {"small": {"window_tokens": WINDOW_TOKENS}},
            }
            async with open_house(tmp_path, upstream, settings=settings) as house:
                await story(house)

    async def story(house: House) -> None:
        items = [user(GOAL), *work(12, 300), *pair(50, "LATEST-RESULT-3")]
        made = await house.make(input=[*items, TRIGGER], store=False, **SUMMARISE)
        await house.make(input=[user(GOAL), *made["output"], user("Go on.")], store=False)
        sent: list[Item] = house.upstream.asked[-1].json["input"]
        told = json.dumps(sent)
        assert [item for item in sent if item.get("type") == "compaction"] == []
        assert told.count(GOAL) == 1
        assert HEADING[:60] in told
        assert SUMMARY in told
        assert sent[-2]["output"] == "LATEST-RESULT-3"

    asyncio.run(main())


# Who leaves


@pytest.mark.parametrize("way", ["compact", "trigger"])
def test_a_client_that_leaves_ends_the_summary(tmp_path: Path, way: str) -> None:
    """The model server is not left working for nobody, and no further request is made."""

    class Holding(Model):
        def __call__(self, request: Any) -> Reply:
            self.refused.append(request)
            return Reply([], end="hold")

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(12, 300)]
        making = asyncio.create_task((talk.compact if way == "compact" else talk.trigger)(items, **SUMMARISE))
        asked = await talk.house.upstream.wait_asked()
        making.cancel()
        await asyncio.wait({making})
        await asyncio.wait_for(asked.left.wait(), WAIT_S)
        await talk.house.upstream.wait_idle()
        assert len(talk.house.upstream.asked) == 1

    run(tmp_path, Holding(), story, window_tokens=WINDOW_TOKENS)


def test_a_server_that_refuses_length_and_is_not_allowed_to_compact_says_so(tmp_path: Path) -> None:
    """No client and no policy asked for it: the error has the numbers, and no summary was made."""

    async def story(talk: CompactingHouse) -> None:
        answer = await talk.client.post({"model": MODEL, "input": [user(GOAL), *work(16, 300)]})
        assert answer.status == 400
        assert answer.error["code"] == "context_length_exceeded"
        assert "3000" in answer.error["message"] or "3,000" in answer.error["message"]
        assert talk.model.summaries == []

    run(tmp_path, Model(window_tokens=3_000), story)


def test_without_a_need_for_it_the_bytes_are_those_of_a_server_that_never_compacts(tmp_path: Path) -> None:
    """Allowed, but not due: prompt, tools and answer are the same."""
    sent: list[list[bytes]] = []

    async def story(talk: CompactingHouse) -> None:
        parent = None
        for number in range(3):
            body: dict[str, Any] = {"input": [system("Be brief."), user(f"Word {number}.")]}
            if talk.model.retain:
                body["context_management"] = [{"type": "compaction", "compact_threshold": 100_000}]
            made = await talk.house.make(previous_response_id=parent, **body)
            assert read_passes(made) == []
            assert list_codes(made) == []
            parent = made["id"]
        sent.append([request.body for request in talk.house.upstream.asked])

    for folder, model, policy in (("off", Model(), "off"), ("auto", Model(retain=["x"]), "auto")):
        (tmp_path / folder).mkdir()
        compaction = {"policy": policy, "recall": policy == "auto"}
        run(tmp_path / folder, model, story, window_tokens=WINDOW_TOKENS, compaction=compaction)
    assert sent[0] == sent[1]
