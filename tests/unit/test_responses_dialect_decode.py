"""What a Responses server sends, however thin, becomes events and items that are whole and in order."""

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import BackendEvent, Failed, Finished, ItemClosed, ItemEvent, ItemOpened
from antiphon.backends.answer import AnswerReader
from antiphon.backends.responses import decode
from antiphon.backends.responses.decode import ResponsesDecoder
from antiphon.backends.responses.ways import find_way
from antiphon.protocol.errors import BackendError
from antiphon.protocol.events import EVENT_TYPES
from antiphon.protocol.item_kinds import ITEM_TYPES
from antiphon.protocol.lifecycle import StreamChecker

Json = dict[str, Any]


def event(name: str, /, **fields: Any) -> Json:
    return {"type": name, **fields}


def feed(events: Sequence[Json | bytes], **options: Any) -> list[BackendEvent]:
    """All that a decoder makes of these events, the end of the stream included."""
    decoder = ResponsesDecoder(**options)
    made: list[BackendEvent] = []
    for each in events:
        made += decoder.feed(each if isinstance(each, bytes) else msgspec.json.encode(each))
    return made + decoder.close()


def check(made: Sequence[BackendEvent], *, but_for: str = "no fault") -> list[Json]:
    """Assert that the events, numbered as the engine does, break no rule of a stream; the finished items."""
    checker = StreamChecker()
    faults: list[str] = []
    number = 0
    items: list[Json] = []
    ids: list[str] = []
    types: list[str] = []

    def send(name: str, /, **fields: Any) -> None:
        nonlocal number, faults
        sent = msgspec.json.decode(msgspec.json.encode({"type": name, "sequence_number": number, **fields}))
        msgspec.json.decode(msgspec.json.encode(sent), type=EVENT_TYPES[name])
        faults += checker.feed(sent)
        number += 1

    response = {"id": "resp_1", "status": "in_progress", "output": []}
    send("response.created", response=response)
    send("response.in_progress", response=response)
    for each in made:
        if isinstance(each, ItemOpened | ItemClosed):
            item = msgspec.json.decode(each.item)
            item.setdefault("id", f"own_{each.index}")
            if isinstance(each, ItemOpened):
                ids.append(item["id"])
                types.append(item["type"])
                send("response.output_item.added", output_index=each.index, item=item)
            else:
                items.append(item)
                send("response.output_item.done", output_index=each.index, item=item)
        elif isinstance(each, ItemEvent) and each.name in EVENT_TYPES and types[each.index] in ITEM_TYPES:
            send(each.name, output_index=each.index, item_id=ids[each.index], **each.fields)
    last = made[-1]
    assert isinstance(last, Finished | Failed)
    if isinstance(last, Finished):
        send("response.completed", response={**response, "status": "completed", "output": items})
    assert [fault for fault in faults if but_for not in fault] == []
    return items


def message(item_id: str = "msg_1", *texts: str) -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []} for text in texts]
    return {"id": item_id, "type": "message", "status": "completed", "role": "assistant", "content": parts}


LLAMA = [
    event("response.created", response={"id": "resp_1", "object": "response", "status": "in_progress"}),
    event("response.in_progress", response={"id": "resp_1", "object": "response", "status": "in_progress"}),
    event(
        "response.output_item.added",
        item={"id": "rs_1", "summary": [], "type": "reasoning", "content": [], "encrypted_content": ""},
    ),
    event("response.reasoning_text.delta", item_id="rs_1", delta="Let me"),
    event("response.reasoning_text.delta", item_id="rs_1", delta=" look."),
    event("response.output_item.added", item={**message(), "status": "in_progress"}),
    event("response.content_part.added", item_id="msg_1", part={"type": "output_text", "text": ""}),
    event("response.output_text.delta", item_id="msg_1", delta="I look"),
    event("response.output_text.delta", item_id="msg_1", delta=" it up."),
    event(
        "response.output_item.added",
        item={
            "arguments": "",
            "call_id": "fc_x",
            "name": "look",
            "type": "function_call",
            "status": "in_progress",
        },
    ),
    event("response.function_call_arguments.delta", item_id="fc_x", delta='{"city":'),
    event("response.function_call_arguments.delta", item_id="fc_x", delta='"Oslo"}'),
    event(
        "response.output_item.done",
        item={
            "id": "rs_1",
            "summary": [],
            "type": "reasoning",
            "content": [{"text": "Let me look.", "type": "reasoning_text"}],
            "encrypted_content": "",
        },
    ),
    event("response.output_text.done", item_id="msg_1", text="I look it up."),
    event(
        "response.content_part.done", item_id="msg_1", part=message("msg_1", "I look it up.")["content"][0]
    ),
    event("response.output_item.done", item=message("msg_1", "I look it up.")),
    event(
        "response.output_item.done",
        item={
            "arguments": '{"city":"Oslo"}',
            "call_id": "fc_x",
            "name": "look",
            "type": "function_call",
            "status": "completed",
        },
    ),
    event(
        "response.completed",
        response={
            "status": "completed",
            "output": [],
            "usage": {"input_tokens": 36, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 35}},
        },
    ),
]


def test_the_thin_stream_of_llama_cpp_is_completed() -> None:
    """llama.cpp's own events: no numbers, no indices, no ends of parts, the ends of all items at the end."""
    made = feed(LLAMA, one_at_a_time=True, hides_cuts=True)
    reasoning, said, call = check(made)
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me look."}]
    assert "status" not in reasoning
    assert (said["status"], call["status"]) == ("completed", "completed")
    assert said["content"][0] == {
        "type": "output_text",
        "text": "I look it up.",
        "annotations": [],
        "logprobs": [],
    }
    assert call["arguments"] == '{"city":"Oslo"}'
    assert isinstance(made[-1], Finished)
    assert made[-1].usage is not None
    assert (made[-1].usage.cached_tokens, made[-1].usage.reasoning_tokens) == (35, None)
    # Nothing waits for an end that comes late.
    first_text = next(
        n for n, each in enumerate(made) if isinstance(each, ItemEvent) and "output_text" in each.name
    )
    decoder = ResponsesDecoder(one_at_a_time=True, hides_cuts=True)
    early = [part for each in LLAMA[:8] for part in decoder.feed(msgspec.json.encode(each))]
    assert len(early) == first_text + 1


def test_a_cut_that_is_called_completed_is_seen_by_the_count() -> None:
    """llama.cpp: `max_output_tokens` cut the answer, `status` is completed."""
    cut = feed(LLAMA, one_at_a_time=True, hides_cuts=True, max_output_tokens=9)
    assert isinstance(cut[-1], Finished)
    assert cut[-1].reason == "length"
    assert [item.get("status") for item in check(cut)] == [None, "completed", "incomplete"]
    assert feed(LLAMA, max_output_tokens=9)[-1] == feed(LLAMA)[-1]
    filled = feed(LLAMA, window_tokens=45)[-1]
    assert isinstance(filled, Finished)
    assert filled.reason == "length"


def test_ollamas_unclosed_message_is_closed_when_the_call_begins() -> None:
    """Ollama 18343: the message is never done, and the call has its output_index."""
    made = feed(
        [
            event("response.output_item.added", output_index=0, item=message("msg_7")),
            event("response.content_part.added", output_index=0, item_id="msg_7", content_index=0, part={}),
            event(
                "response.output_text.delta", output_index=0, item_id="msg_7", content_index=0, delta="Hm."
            ),
            event(
                "response.output_item.added",
                output_index=0,
                item={
                    "id": "fc_7_0",
                    "type": "function_call",
                    "call_id": "call_a",
                    "name": "f",
                    "arguments": "",
                },
            ),
            event("response.function_call_arguments.delta", output_index=0, item_id="fc_7_0", delta="{}"),
            event("response.function_call_arguments.done", output_index=0, item_id="fc_7_0", arguments="{}"),
            event(
                "response.output_item.done",
                output_index=0,
                item={
                    "id": "fc_7_0",
                    "type": "function_call",
                    "call_id": "call_a",
                    "name": "f",
                    "arguments": "{}",
                },
            ),
            event(
                "response.completed",
                response={
                    "status": "completed",
                    "output": [
                        {
                            "id": "fc_7_0",
                            "type": "function_call",
                            "call_id": "call_a",
                            "name": "f",
                            "arguments": "{}",
                        },
                        message("msg_7", "Hm."),
                    ],
                },
            ),
        ],
        one_at_a_time=True,
    )
    said, call = check(made)
    assert said["content"][0]["text"] == "Hm."
    assert (call["name"], call["arguments"], call["status"]) == ("f", "{}", "completed")


FULL: list[tuple[Json, list[Json]]] = [
    (
        {
            "id": "rs_1",
            "type": "reasoning",
            "status": "completed",
            "summary": [
                {"type": "summary_text", "text": "First."},
                {"type": "summary_text", "text": "Then."},
            ],
            "encrypted_content": "sealed",
            "x_new": {"kept": 1.0},
        },
        [
            event(
                "response.reasoning_summary_part.added",
                summary_index=0,
                part={"type": "summary_text", "text": ""},
            ),
            event("response.reasoning_summary_text.delta", summary_index=0, delta="Fir"),
            event("response.reasoning_summary_text.delta", summary_index=0, delta="st."),
            event("response.reasoning_summary_text.done", summary_index=0, text="First."),
            event(
                "response.reasoning_summary_part.done",
                summary_index=0,
                part={"type": "summary_text", "text": "First."},
            ),
            event(
                "response.reasoning_summary_part.added",
                summary_index=1,
                part={"type": "summary_text", "text": ""},
            ),
            event("response.reasoning_summary_text.delta", summary_index=1, delta="Then."),
            event("response.reasoning_summary_text.done", summary_index=1, text="Then."),
            event(
                "response.reasoning_summary_part.done",
                summary_index=1,
                part={"type": "summary_text", "text": "Then."},
            ),
        ],
    ),
    (
        {
            "id": "ws_1",
            "type": "web_search_call",
            "status": "completed",
            "action": {"type": "search", "query": "Oslo", "sources": []},
        },
        [
            event("response.web_search_call.in_progress"),
            event("response.web_search_call.searching"),
            event("response.web_search_call.completed"),
        ],
    ),
    (
        {
            **message("msg_1", "One two."),
            "phase": "commentary",
            "content": [
                {
                    "type": "output_text",
                    "text": "One two.",
                    "annotations": [
                        {"type": "url_citation", "url": "http://a", "start_index": 0, "end_index": 3}
                    ],
                    "logprobs": [],
                },
                {"type": "refusal", "refusal": "No more."},
            ],
        },
        [
            event(
                "response.content_part.added",
                content_index=0,
                part={"type": "output_text", "text": "", "annotations": [], "logprobs": []},
            ),
            event("response.output_text.delta", content_index=0, delta="One ", logprobs=[]),
            event("response.output_text.delta", content_index=0, delta="two.", logprobs=[]),
            event(
                "response.output_text.annotation.added",
                content_index=0,
                annotation_index=0,
                annotation={"type": "url_citation", "url": "http://a", "start_index": 0, "end_index": 3},
            ),
            event("response.output_text.done", content_index=0, text="One two.", logprobs=[]),
            event(
                "response.content_part.done",
                content_index=0,
                part={
                    "type": "output_text",
                    "text": "One two.",
                    "annotations": [
                        {"type": "url_citation", "url": "http://a", "start_index": 0, "end_index": 3}
                    ],
                    "logprobs": [],
                },
            ),
            event("response.content_part.added", content_index=1, part={"type": "refusal", "refusal": ""}),
            event("response.refusal.delta", content_index=1, delta="No more."),
            event("response.refusal.done", content_index=1, refusal="No more."),
            event(
                "response.content_part.done", content_index=1, part={"type": "refusal", "refusal": "No more."}
            ),
        ],
    ),
    (
        {
            "id": "fc_1",
            "type": "function_call",
            "status": "completed",
            "call_id": "call_1",
            "name": "look",
            "arguments": '{"a": 1}',
        },
        [
            event("response.function_call_arguments.delta", delta='{"a"'),
            event("response.function_call_arguments.delta", delta=": 1}"),
            event("response.function_call_arguments.done", arguments='{"a": 1}', name="look"),
        ],
    ),
    (
        {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "*** raw"},
        [
            event("response.custom_tool_call_input.delta", delta="*** raw"),
            event("response.custom_tool_call_input.done", input="*** raw"),
        ],
    ),
    (
        {
            "id": "mcp_1",
            "type": "mcp_call",
            "status": "failed",
            "server_label": "s",
            "name": "t",
            "arguments": "{}",
            "output": None,
            "error": "It broke.",
        },
        [
            event("response.mcp_call.in_progress"),
            event("response.mcp_call_arguments.delta", delta="{}"),
            event("response.mcp_call_arguments.done", arguments="{}"),
            event("response.mcp_call.failed"),
        ],
    ),
    (
        {
            "id": "ci_1",
            "type": "code_interpreter_call",
            "status": "completed",
            "container_id": "c",
            "code": "1+1",
            "outputs": None,
        },
        [
            event("response.code_interpreter_call.in_progress"),
            event("response.code_interpreter_call_code.delta", delta="1+1"),
            event("response.code_interpreter_call_code.done", code="1+1"),
            event("response.code_interpreter_call.interpreting"),
            event("response.code_interpreter_call.completed"),
        ],
    ),
    (
        {"id": "ig_1", "type": "image_generation_call", "status": "completed", "result": "aGk="},
        [
            event("response.image_generation_call.in_progress"),
            event("response.image_generation_call.generating"),
            event(
                "response.image_generation_call.partial_image",
                partial_image_index=0,
                partial_image_b64="aGk=",
            ),
            event("response.image_generation_call.completed"),
        ],
    ),
    (
        {
            "id": "sh_1",
            "type": "shell_call",
            "status": "completed",
            "call_id": "call_3",
            "action": {"commands": ["ls -l"], "timeout_ms": None},
        },
        [
            event("response.shell_call_command.added", command_index=0, command="ls"),
            event("response.shell_call_command.delta", command_index=0, delta=" -l"),
            event("response.shell_call_command.done", command_index=0, command="ls -l"),
        ],
    ),
    ({"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "s", "tools": []}, []),
    (
        {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"},
        [event("response.compaction.compacting")],
    ),
    ({"id": "own_1", "type": "slug:own", "deep": [1.0, {"a": None}]}, [event("slug:own.ticked", tick=1)]),
]
FINISHED = [item for item, _ in FULL]


def begin(item: Json) -> Json:
    """How an item looks when it begins."""
    begun = {**item, **({"status": "in_progress"} if "status" in item else {})}
    for key in ("content", "summary", "tools"):
        if key in begun:
            begun[key] = []
    for key in ("arguments", "input", "code"):
        if key in begun:
            begun[key] = ""
    return begun


def stream(*, without: Any = lambda name: False, told: bool = True) -> list[list[Json]]:
    """The events of each item, whole or thinned; `told`: with ids and indices."""
    lanes = []
    for index, (item, inner) in enumerate(FULL):
        where = {"output_index": index} if told else {}
        lane = [event("response.output_item.added", item=begin(item), **where)]
        for each in inner:
            lane.append({**each, **where, "item_id": item["id"]})
        lane.append(event("response.output_item.done", item=item, **where))
        lanes.append([each for each in lane if not without(each["type"])])
    return lanes


END = event("response.completed", response={"status": "completed", "output": FINISHED})


def test_a_whole_stream_passes_as_it_is() -> None:
    """Ours: what lacks nothing gets nothing, but for what the table wants of `mcp_list_tools`."""
    sent = [each for lane in stream() for each in lane]
    made = feed([*sent, END])
    assert check(made) == FINISHED
    told = [each["type"] for each in sent if "output_item" not in each["type"]]
    made_names = [each.name for each in made if isinstance(each, ItemEvent)]
    assert [name for name in made_names if "mcp_list_tools" not in name] == told
    raws = [bytes(each.item) for each in made if isinstance(each, ItemClosed)]
    assert raws == [msgspec.json.encode(item) for item in FINISHED]


@given(seed=st.integers(min_value=0), thinning=st.sampled_from([0.1, 0.5, 1.0]), told=st.booleans())
def test_whatever_is_left_out_is_made_up(seed: int, thinning: float, told: bool) -> None:
    """Ours: any events of an item may be missing, its beginning or its end too; the items are the same.

    Where neither is told, only the last event says that an item was there, so its order is not known.
    """
    chance = random.Random(seed)
    dropped = {name for name in EVENT_TYPES if chance.random() < thinning}
    dropped.discard(chance.choice(["response.output_item.added", "response.output_item.done"]))
    if thinning < 1:
        # Indices are not believed, so a part that is not told at all is not missed before the next one.
        dropped.discard(chance.choice(["response.output_text.delta", "response.output_text.done"]))
    lanes = stream(without=dropped.__contains__, told=told)
    made = feed([*(each for lane in lanes for each in lane), END])
    assert check(made) == FINISHED


@given(seed=st.integers(min_value=0), hides_cuts=st.booleans())
def test_interleaved_items_are_put_in_order(seed: int, hides_cuts: bool) -> None:
    """Ours: items that are made side by side leave strictly one after another."""
    chance = random.Random(seed)
    lanes = stream()
    mixed: list[Json] = []
    begun = 0
    while any(lanes):
        # Items begin in order; what is inside them comes in any.
        ready = [n for n, lane in enumerate(lanes) if lane and (n < begun or n == begun)]
        chosen = chance.choice(ready)
        begun = max(begun, chosen + 1)
        mixed.append(lanes[chosen].pop(0))
    assert check(feed([*mixed, END], hides_cuts=hides_cuts)) == FINISHED


@given(seed=st.integers(min_value=0))
def test_an_answer_that_breaks_off_anywhere_leaves_whole_items(seed: int) -> None:
    """Contract of `stream`: one terminal event; items of text are ended as incomplete."""
    chance = random.Random(seed)
    sent = [each for lane in stream() for each in lane]
    made = feed(sent[: chance.randrange(len(sent))])
    assert isinstance(made[-1], Failed)
    items = check(made)
    for item, finished in zip(items, FINISHED, strict=False):
        assert item["id"] == finished["id"]
        assert item == finished or item["status"] == "incomplete"


def test_indices_that_count_on_from_item_to_item_are_ours() -> None:
    """vLLM counts content parts on over the whole response; the API counts them in each item."""
    made = feed(
        [
            event("response.output_item.added", output_index=1, item=message()),
            event("response.content_part.added", output_index=1, item_id="msg_1", content_index=1, part={}),
            event("response.output_text.delta", output_index=1, item_id="msg_1", content_index=1, delta="a"),
            event("response.output_text.delta", output_index=1, item_id="msg_1", content_index=1, delta="b"),
            event("response.output_text.done", output_index=1, item_id="msg_1", content_index=1, text="ab"),
            event("response.output_item.done", output_index=1, item=message("msg_1", "ab")),
            event("response.completed", response={"status": "completed"}),
        ]
    )
    assert check(made) == [message("msg_1", "ab")]
    assert {each.fields["content_index"] for each in made if isinstance(each, ItemEvent)} == {0}


def test_inside_an_item_of_an_unknown_type_every_event_passes() -> None:
    """Decided: nobody can say which events belong there."""
    inner = event("response.output_text.delta", item_id="own_9", content_index=4, delta="a", logprobs=[])
    item = {"id": "own_9", "type": "slug:own"}
    made = feed([event("response.output_item.added", item=item), inner, inner, END])
    passed = [each for each in made if isinstance(each, ItemEvent) and not each.index]
    assert [each.fields["delta"] for each in passed] == [msgspec.Raw(b'"a"')] * 2


def test_items_that_were_never_streamed_come_with_the_end() -> None:
    """Ours: a server that tells its output in the last event alone."""
    assert check(feed([event("response.created", response={}), END])) == FINISHED


def test_texts_that_disagree_follow_what_was_sent() -> None:
    """Ours: deltas cannot be taken back, so the done texts and the item follow them."""
    made = feed(
        [
            event("response.output_item.added", output_index=0, item=message()),
            event("response.output_text.delta", item_id="msg_1", content_index=0, delta="Sent"),
            event("response.output_text.done", item_id="msg_1", content_index=0, text="Else"),
            event("response.output_item.done", output_index=0, item={**message("msg_1", "Else"), "x": 1}),
            event("response.completed", response={"status": "completed"}),
        ]
    )
    [item] = check(made)
    assert item["content"][0]["text"] == "Sent"
    assert item["x"] == 1


@pytest.mark.parametrize(
    ("terminal", "reason"),
    [
        (
            event("response.incomplete", response={"incomplete_details": {"reason": "max_output_tokens"}}),
            "length",
        ),
        (
            event("response.incomplete", response={"incomplete_details": {"reason": "content_filter"}}),
            "content_filter",
        ),
        (
            # vLLM names the event completed whatever the status.
            event(
                "response.completed",
                response={"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            ),
            "length",
        ),
        (event("response.completed", response={"status": "completed", "error": None}), "stop"),
        (b"[DONE]", "stop"),
    ],
)
def test_the_end_is_read_in_every_form(terminal: Json | bytes, reason: str) -> None:
    """Specification of the terminal events; vLLM measured; a bare [DONE] ends a stream too."""
    last = feed([event("response.output_item.done", output_index=0, item=message("m", "x")), terminal])[-1]
    assert isinstance(last, Finished)
    assert last.reason == reason


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b"17", b'{"type":"response.output_item.added","item":7}', b'{"type":"x","delta":"\xff"}'],
)
def test_garbage_is_one_failure(data: bytes) -> None:
    """Ours: whatever comes, exactly one terminal event is the last."""
    made = feed([event("response.output_item.added", item=message()), data, END])
    assert [type(each) for each in made].count(Failed) == 1
    assert isinstance(made[-1], Failed)
    assert isinstance(made[-1].error, BackendError)
    check(made)


#: What a broken server may put in any place.
JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 7, 2**70, 1.5, "", "x", "message", "response.output_text.delta"),
    *([], {}, [1], [{}], [["x"]], {"a": 1}, {"type": "output_text"}, {"type": "message", "content": "text"}),
)


def find_places(value: Any) -> list[tuple[Any, Any]]:
    """Every member of a tree: what holds it, and its key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in [(value, key), *find_places(value[key])]]


@given(
    seed=st.integers(min_value=0),
    shuffled=st.booleans(),
    hides_cuts=st.booleans(),
    one_at_a_time=st.booleans(),
)
def test_a_broken_stream_breaks_no_rule_of_ours(
    seed: int, shuffled: bool, hides_cuts: bool, one_at_a_time: bool
) -> None:
    """Ours: members of any kind in any place, events missing and out of order; one terminal event, and no fault."""
    chance = random.Random(seed)
    sent = copy.deepcopy([each for lane in stream(told=chance.random() < 0.5) for each in lane] + [END])
    sent = [each for each in sent if chance.random() < 0.8]
    for _ in range(chance.choice([1, 2, 5])):
        places = find_places(chance.choice(sent)) if sent else []
        if places:
            holder, key = chance.choice(places)
            holder[key] = copy.deepcopy(chance.choice(JUNK))
    if shuffled:
        chance.shuffle(sent)
    made = feed(sent, hides_cuts=hides_cuts, one_at_a_time=one_at_a_time)
    assert [type(each) in (Finished, Failed) for each in made].index(True) == len(made) - 1
    # A part of a kind that has no events stands in the item all the same.
    check(made, but_for="_index is")


def test_text_behind_the_end_of_its_item_is_a_failure() -> None:
    """Ours: nothing is lost silently."""
    late = event("response.output_text.delta", item_id="msg_1", delta="more")
    made = feed([event("response.output_item.done", output_index=0, item=message("msg_1", "x")), late, END])
    assert isinstance(made[-1], Failed)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: every buffer has a limit."""
    monkeypatch.setattr(decode, "WAITING_BYTES", 2_000)
    first, second = message("msg_1"), message("msg_2")
    delta = event("response.output_text.delta", item_id="msg_2", delta="x" * 100)
    made = feed(
        [
            event("response.output_item.added", output_index=0, item=first),
            event("response.output_item.added", output_index=1, item=second),
            *([delta] * 20),
        ]
    )
    assert isinstance(made[-1], Failed)
    assert "put in order" in made[-1].error.message


def test_the_items_of_the_end_are_told_apart_without_walking_them() -> None:
    """Ours: one event may tell thousands of items; what it costs to place one does not grow with their number."""
    walked = 0

    class Lanes(list[Any]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal walked
            found = super().__getitem__(at)
            walked += len(found) if isinstance(at, slice) else 1
            return found

    decoder = decode.ResponsesDecoder()
    decoder._lanes = Lanes()
    count = 1_000
    output = [message(f"msg_{at}", "x") for at in range(count)]
    made = decoder.feed(msgspec.json.encode({"status": "completed", "output": output}))
    assert len(check(made)) == count
    assert walked < 10 * count


def test_items_of_one_id_are_each_told_once() -> None:
    """Ours: streamed and told again at the end, two items of one id stay two."""
    twins = [message("msg_same", "one"), message("msg_same", "two")]
    streamed = [
        event("response.output_item.done", output_index=at, item=item) for at, item in enumerate(twins)
    ]
    for events in ([], streamed[:1]):
        made = feed([*events, event("response.completed", response={"status": "completed", "output": twins})])
        assert [item["content"][0]["text"] for item in check(made)] == ["one", "two"]


def test_a_name_or_a_text_of_another_kind_is_made_one() -> None:
    """Ours: arguments that are told as an object are its JSON; a name that is no text is none."""
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": 5, "arguments": {"a": [1]}}
    [made] = check(feed([event("response.completed", response={"status": "completed", "output": [call]})]))
    assert (made["name"], made["arguments"]) == ("", '{"a":[1]}')


def test_a_call_without_arguments_or_id_can_be_answered() -> None:
    """Ours: clients parse the arguments and answer by call_id."""
    made = feed(
        [
            event("response.output_item.done", item={"type": "function_call", "name": "f"}),
            event("response.completed", response={}),
        ],
        call_id_stem="call_stem",
    )
    [call] = check(made)
    assert (call["arguments"], call["call_id"]) == ("{}", "call_stem_0")


def test_a_way_is_the_shortest_and_makes_nothing_up_that_only_the_server_knows() -> None:
    """Ours: walks of the table."""
    assert find_way("message", "open", "response.output_item.done") == ()
    assert find_way("message", "text", "response.output_item.done") == (
        "response.output_text.done",
        "response.content_part.done",
    )
    assert find_way("message", "part_whole", "response.output_text.done", may_start=False) is None
    assert find_way("other", "open", "response.output_text.delta") is None


def test_a_character_in_two_deltas_is_one_character() -> None:
    """RFC 8259 section 7: the halves are joined, and the deltas add up to the text."""
    reader = AnswerReader(ResponsesDecoder(), streamed=True)
    item = '{"id":"msg_1","type":"message","role":"assistant","content":[],"status":"in_progress"}'
    place = '"item_id":"msg_1","output_index":0,"content_index":0'
    payloads = [
        f'{{"type":"response.output_item.added","output_index":0,"item":{item}}}',
        *(
            f'{{"type":"response.output_text.delta",{place},"delta":"{text}"}}'
            for text in (r"a\ud83d", r"\ude00b", r"\ude00")
        ),
        '{"type":"response.completed","response":{"status":"completed","output":[]}}',
    ]
    events = [event for each in payloads for event in reader.feed(f"data: {each}\n\n".encode())]
    deltas = [
        event.fields["delta"] for event in events if isinstance(event, ItemEvent) and "delta" in event.fields
    ]
    assert "".join(deltas) == "a😀b\ufffd"
    (closed,) = [event for event in events if isinstance(event, ItemClosed)]
    assert json.loads(closed.item)["content"][0]["text"] == "a😀b\ufffd"
