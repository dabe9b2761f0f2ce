"""Compaction before model servers that answer oddly: refusals, nonsense, no end, other counts, words without numbers.

All of it is ours: faults of their kinds were found by trying to break it, each kind is probed whole.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import pytest

from tests.fake_upstream import END, MODEL, Reply, Request, make_chunk, make_head, make_json
from tests.scenarios.client import find_terminal
from tests.scenarios.compaction_talk import (
    ANSWER,
    FAILING,
    SUMMARY,
    TRIGGER,
    CompactingHouse,
    Item,
    Model,
    call,
    count_tokens,
    find_summary,
    is_summary_request,
    list_texts,
    prose,
    read_item,
    read_pass,
    read_passes,
    run,
    show_prompt,
    system,
    user,
    work,
)
from tests.scenarios.houses import list_codes, write

WINDOW_TOKENS = 6_000
SUMMARISE: dict[str, Any] = {"antiphon": {"method": "summary"}}
DUE: dict[str, Any] = {"context_management": [{"type": "compaction"}]}
GOAL = "Task GOAL-1."
LATEST = "Then LATEST-2."
HISTORY = [user(GOAL), *work(12, 300), user(LATEST)]
SHORT = [user(GOAL), *work(8, 100), user(LATEST)]
LONG = [user(GOAL), *work(40, 200), user(LATEST)]


def say(text: str = "", finish: str = "stop", **delta: Any) -> Reply:
    """A generation of one piece, without usage."""
    given = {**({"content": text} if text else {}), **delta}
    return Reply([make_head(), *([make_chunk(given)] if given else []), make_chunk({}, finish), END])


def find_warning(made: dict[str, Any], code: str) -> str:
    """The words of the one warning of that code."""
    (told,) = [each["message"] for each in made["antiphon"]["warnings"] if each["code"] == code]
    return str(told)


# Answers that are no summary


NO_SUMMARIES: dict[str, list[Reply]] = {
    "refusals": [
        say(refusal="I cannot help with that."),
        say("A text that is long enough for a summary.", refusal="No."),
        say(finish="content_filter"),
    ],
    "apologies": [
        say("I'm sorry, but I can't help with summarising this conversation."),
        say("I am sorry, this is against my guidelines, so that no summary follows."),
        say("Sorry, as a language model I have no access to the conversation."),
        say("I cannot assist with that request; please ask for something else."),
        say("I can\u2019t do that; please ask for something else instead of it."),
        say("I'm unable to summarise a conversation that I have not seen."),
        say("I won't write about this conversation, whatever I am asked."),
    ],
    "words": [say(text) for text in ("null", "OK", "Okay, done.", "...", "true", " \n\t ", "")],
    "objects": [
        say(text)
        for text in (
            "{}",
            "[]",
            '""',
            '{"foo": 1}',
            '{"status": "ok"}',
            '{"summary": null}',
            '{"goal": "", "decisions": [], "open": []}',
            '{"name": "read_file", "arguments": {"path": "src/part_1.py"}}',
        )
    ],
    "thoughts": [
        say(reasoning_content="The user wants a summary. " * 20),
        say("<think>The user wants a summary of it.</think>\n"),
        write([("read_file", '{"path": "src/part_1.py"}')]),
    ],
}


@pytest.mark.parametrize("kind", NO_SUMMARIES)
def test_an_answer_that_tells_nothing_is_repaired_and_never_stands_for_the_history(
    tmp_path: Path, kind: str
) -> None:
    """Once: it is asked for again. Each time: an extract by rule takes its place, and a warning says so."""

    async def story(talk: CompactingHouse) -> None:
        for number, spoiler in enumerate(NO_SUMMARIES[kind]):
            talk.model.spoilers = [spoiler]
            made = await talk.trigger(SHORT, store=False, **SUMMARISE)
            done = read_pass(made)
            assert (done["summary"], done["repairs"]) == ("model", 1), number
            assert "compaction_extract" not in list_codes(made)
            assert SUMMARY in find_summary(await talk.show([read_item(made)], store=False))
            talk.model.spoilers = [spoiler] * 3
            made = await talk.compact(SHORT, **SUMMARISE)
            done = read_pass(made)
            assert (done["summary"], done["repairs"], done["model_calls"]) == ("extract", 1, 2), number
            assert "What went wrong: " in find_warning(made, "compaction_extract")
            told = find_summary(await talk.show([read_item(made)], store=False))
            assert "No model wrote this summary" in told
            assert GOAL in list_texts(talk.model.rounds[-1], "user")

    run(tmp_path, Model(), story, window_tokens=2_000)


PIECE = "think again " * 1_000
ENDLESS: dict[str, dict[str, Any]] = {
    "reasoning": {"reasoning_content": PIECE},
    "text": {"content": PIECE},
    "refusal": {"refusal": PIECE},
    "arguments": {"tool_calls": [{"index": 0, "id": "up_0", "function": {"name": "x", "arguments": PIECE}}]},
}


class Repeated(Sequence[bytes]):
    """So many steps, all alike, and how many of them were taken."""

    def __init__(self, step: bytes, length: int) -> None:
        self.step = step
        self.length = length
        self.taken = 0

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        assert isinstance(at, int)
        if at >= self.length:
            raise IndexError(at)
        self.taken = max(self.taken, at)
        return self.step if at else make_head()


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_summariser_that_never_stops_is_stopped(tmp_path: Path, kind: str) -> None:
    """Whatever it streams, so many characters are read, and the pass goes on without it."""
    streams = [Repeated(make_chunk(ENDLESS[kind]), 100_000) for _ in range(4)]

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact(HISTORY, **SUMMARISE)
        done = read_pass(made)
        assert done["summary"] == "extract"
        assert done["model_calls"] == len(talk.model.refused) <= 2
        await talk.show(made["output"])
        # The network holds some of it too.
        assert all(stream.taken * len(PIECE) < 20_000_000 for stream in streams)

    spoilers = [Reply(stream, "hold") for stream in streams]
    run(tmp_path, Model(spoilers=spoilers), story, window_tokens=WINDOW_TOKENS)


# Servers that count otherwise, or say little


class CountingModel(Model):
    """Counts `factor` times as much as `Model` does, and refuses in words of its own."""

    def __init__(self, window_tokens: int, words: str, *, factor: float = 1.0) -> None:
        super().__init__(window_tokens=window_tokens)
        self.words = words
        self.factor = factor

    def count(self, request: Request) -> int:
        """A prompt's tokens, as this server counts."""
        return round(count_tokens(request) * self.factor)

    def __call__(self, request: Request) -> Reply:
        tokens = self.count(request)
        assert self.window_tokens is not None
        if tokens > self.window_tokens:
            self.refused.append(request)
            words = self.words.format(tokens=tokens, window=self.window_tokens)
            return Reply([make_json({"error": {"message": words, "type": "bad_request"}}, status=400)])
        is_summary = is_summary_request(request)
        (self.summaries if is_summary else self.rounds).append(request)
        return write(SUMMARY if is_summary else ANSWER, prompt_tokens=tokens)

    def measure(self, requests: list[Request]) -> list[int]:
        """The sizes of these."""
        return [self.count(request) for request in requests]


WORDS = [
    "the input length exceeds the context length",
    "The input token count exceeds the maximum number of tokens allowed.",
    "Please reduce the length of the messages or completion.",
    "prompt filled the context window",
]
WITH_NUMBERS = [
    "request ({tokens} tokens) exceeds the available context size ({window} tokens), try increasing it",
    "This model's maximum context length is {window} tokens. However, your messages resulted in {tokens} tokens.",
    "prompt is too long: {tokens} tokens > {window} maximum",
]


@pytest.mark.parametrize("words", WORDS, ids=["ollama", "gemini", "groq", "filled"])
@pytest.mark.parametrize("way", ["compact", "due"])
def test_words_without_numbers_teach_what_fits_and_are_not_heard_twice(
    tmp_path: Path, words: str, way: str
) -> None:
    """The window is unknown: what is made is shorter than all that was refused, and the next request begins there."""

    async def ask(talk: CompactingHouse, items: list[Item]) -> dict[str, Any]:
        if way == "compact":
            return await talk.compact(items, **SUMMARISE)
        return await talk.house.make(input=items, **DUE, **SUMMARISE)

    async def story(talk: CompactingHouse) -> None:
        model = talk.model
        assert isinstance(model, CountingModel)
        made = await ask(talk, LONG)
        assert "refused" not in read_pass(made)
        refused = model.measure(model.refused)
        assert refused
        assert len({request.body for request in model.refused}) == len(refused)
        shown = model.rounds[-1] if way == "due" else await talk.show(made["output"])
        assert model.count(shown) < min(refused)
        count = len(refused)
        await ask(talk, [*LONG[:-1], user("Something else.")])
        assert model.measure(model.refused)[count:] == []

    run(tmp_path, CountingModel(WINDOW_TOKENS, words), story)


@pytest.mark.parametrize("words", WITH_NUMBERS, ids=["llama", "openai", "anthropic"])
@pytest.mark.parametrize("way", ["compact", "trigger", "due"])
def test_a_window_that_was_told_once_is_known_from_then_on(tmp_path: Path, words: str, way: str) -> None:
    """By whatever request it was told: the next one is not refused, and is compacted before the model is asked."""

    async def story(talk: CompactingHouse) -> None:
        if way == "due":
            await talk.house.make(input=LONG, **DUE, **SUMMARISE)
        else:
            await (talk.compact if way == "compact" else talk.trigger)(LONG, **SUMMARISE)
        refused = len(talk.model.refused)
        assert refused > 0
        made = await talk.house.make(input=[*LONG[:-1], user("Something else.")], **DUE, **SUMMARISE)
        assert read_pass(made)["reason"] == "threshold"
        await talk.compact([*LONG, user("Again.")], **SUMMARISE)
        assert len(talk.model.refused) == refused

    run(tmp_path, CountingModel(WINDOW_TOKENS, words), story)


@pytest.mark.parametrize("factor", [1 / 3, 1.0, 3.0], ids=["third", "same", "thrice"])
@pytest.mark.parametrize("words", [WORDS[0], WITH_NUMBERS[0]], ids=["words", "numbers"])
@pytest.mark.parametrize("way", ["compact", "trigger", "due"])
def test_what_a_pass_tells_of_its_window_is_near_the_servers_own_count(
    tmp_path: Path, factor: float, words: str, way: str
) -> None:
    """A tokenizer of another kind counts three times our estimate, or a third of it: the calls have told so."""

    async def story(talk: CompactingHouse) -> None:
        model = talk.model
        assert isinstance(model, CountingModel)
        if way == "due":
            made = await talk.house.make(
                input=LONG,
                context_management=[{"type": "compaction", "compact_threshold": 2_500}],
                **SUMMARISE,
            )
        else:
            made = await (talk.compact if way == "compact" else talk.trigger)(LONG, **SUMMARISE)
        shown = model.rounds[-1] if way == "due" else await talk.show([read_item(made)])
        told = read_pass(made)["tokens_after"]
        assert abs(told - model.count(shown)) <= 0.15 * model.count(shown) + 30 * factor
        assert model.count(shown) <= WINDOW_TOKENS

    model = CountingModel(WINDOW_TOKENS, words, factor=factor)
    run(tmp_path, model, story, window_tokens=WINDOW_TOKENS)


# Failures that are told


@pytest.mark.parametrize("way", ["compact", "trigger", "stream"])
@pytest.mark.parametrize("what", ["system", "calls"])
def test_a_compaction_that_cannot_be_tells_numbers_and_that_a_retry_is_no_use(
    tmp_path: Path, way: str, what: str
) -> None:
    """What must stay is longer than the window: how long it is, what of it is fixed, and what the model takes."""
    unfinished = [call(90 + number, text=prose(number, 1_500)) for number in range(6)]
    items = {
        "system": [system(prose(1, 8_000)), *HISTORY],
        "calls": [user(GOAL), *work(4), *unfinished],
    }[what]

    async def story(talk: CompactingHouse) -> None:
        body: dict[str, Any] = {"model": MODEL, "input": items, **SUMMARISE}
        if way == "stream":
            events = await talk.client.stream(**{**body, "input": [*items, TRIGGER]})
            failed = find_terminal(events)
            assert failed["status"] == "failed"
            error = failed["error"]
        else:
            if way == "compact":
                answer = await talk.client.send("POST", "/v1/responses/compact", body)
            else:
                answer = await talk.client.post({**body, "input": [*items, TRIGGER]})
            assert answer.status == 500
            assert answer.headers["x-should-retry"] == "false"
            error = answer.error
        assert error["code"] == "compaction_failed"
        numbers = [int(number) for number in re.findall(r"\d+", error["message"])]
        assert WINDOW_TOKENS in numbers
        assert max(numbers) > WINDOW_TOKENS
        assert "The history is as it was" in error["message"]

    run(tmp_path, Model(window_tokens=WINDOW_TOKENS), story, window_tokens=WINDOW_TOKENS)


@pytest.mark.parametrize("known", [None, WINDOW_TOKENS])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_after_a_compaction_that_did_not_help_says_that_it_was_tried(
    tmp_path: Path, known: int | None, stream: bool
) -> None:
    """The client asked for compaction; a bare refusal would read as if nothing had been done."""

    async def story(talk: CompactingHouse) -> None:
        body: dict[str, Any] = {"model": MODEL, "input": [system(prose(1, 7_000)), user(GOAL)], **DUE}
        if stream:
            error = find_terminal(await talk.client.stream(**body))["error"]
        else:
            answer = await talk.client.post(body)
            assert answer.status == 400
            error = answer.error
        assert error["code"] == "context_length_exceeded"
        assert "compaction was tried" in error["message"]

    profile = {"window_tokens": known} if known else {}
    run(tmp_path, Model(window_tokens=WINDOW_TOKENS), story, profile=profile)


BROKEN: dict[str, Reply] = {
    "unknown": Reply([make_json({"error": {"message": "No such model: WORDS-9."}}, status=404)]),
    "bad": Reply([make_json({"error": {"message": "Bad request WORDS-9."}}, status=400)]),
    "failing": Reply([make_json({"error": {"message": "Out of memory WORDS-9."}}, status=500)]),
    "not allowed": Reply([make_json({"error": {"message": "Wrong key."}}, status=401)]),
    "without an answer": say(),
    "gone": Reply([], "reset"),
}


class TwoModels(Model):
    """The conversation's own model, and a writer that answers with one reply whatever it is asked."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply
        self.asked_writer = 0

    def __call__(self, request: Request) -> Reply:
        if request.json["model"] != "writer-model":
            return super().__call__(request)
        self.asked_writer += 1
        return self.reply


ALIASES = {MODEL: {"endpoint": "fake"}, "writer": {"endpoint": "fake", "model": "writer-model"}}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("way", ["compact", "trigger"])
def test_a_broken_model_for_summaries_does_not_end_compaction(tmp_path: Path, name: str, way: str) -> None:
    """The conversation's own writes it, or a rule does; a warning tells what the broken one said."""

    async def story(talk: CompactingHouse) -> None:
        model = talk.model
        assert isinstance(model, TwoModels)
        made = await (talk.compact if way == "compact" else talk.trigger)(HISTORY, **SUMMARISE)
        assert 0 < model.asked_writer <= 3
        assert read_pass(made)["summary"] in ("model", "extract")
        told = json.dumps(made["antiphon"]["warnings"])
        words = {
            "not allowed": "refused Antiphon's credentials",
            "without an answer": "it was empty",
            "gone": "",
            "unknown": "does not exist",
        }
        assert words.get(name, "WORDS-9") in told
        shown = await talk.show(made["output"])
        assert GOAL in list_texts(shown, "user")
        assert find_summary(shown)

    model = TwoModels(BROKEN[name])
    run(tmp_path, model, story, window_tokens=WINDOW_TOKENS, compaction={"model": "writer"}, models=ALIASES)


def test_a_pass_that_failed_before_a_round_does_not_end_the_round(tmp_path: Path) -> None:
    """All summaries fail: the client that only wanted to go on is answered, from a window that was made by rule."""

    async def story(talk: CompactingHouse) -> None:
        made = await talk.house.make(
            input=LONG[:61],
            context_management=[{"type": "compaction", "compact_threshold": 2_000}],
            **SUMMARISE,
        )
        assert made["status"] == "completed"
        (done,) = read_passes(made)
        assert done["summary"] == "extract"
        assert "Out of memory." in find_warning(made, "compaction_extract")
        assert "Out of memory." not in show_prompt(talk.model.rounds[-1])

    items = Model(spoilers=[FAILING] * 40)
    run(tmp_path, items, story, window_tokens=20_000)
