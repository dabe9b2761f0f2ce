"""The scripted model: the contract of backends, the language of scripts, and what the demo claims."""

import asyncio
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from antiphon.backends import (
    Ask,
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.backends.scripted import Rule, Script, ScriptedBackend, ScriptError, load_script, parse_script
from antiphon.backends.scripted.acts import Fact, find_facts
from antiphon.backends.scripted.instances import _FORMS, Source, build_instance
from antiphon.backends.scripted.script import Trouble
from antiphon.backends.scripted.window import count_text
from antiphon.context import Profile
from antiphon.protocol.errors import (
    BackendAuthError,
    BackendError,
    BackendRateLimitError,
    BackendRefusedError,
    BackendTimeoutError,
    ContextOverflowError,
)
from antiphon.protocol.requests import TextFormat
from antiphon.protocol.tools import FunctionTool
from tests.contracts.backend_suite import (
    BREAK,
    CHECKS,
    HELLO,
    REFUSE,
    TIMEOUT_S,
    Check,
    Subject,
    flatten,
    join_text,
    name_check,
    to_items,
)

WEATHER = FunctionTool(
    name="get_weather",
    description="The weather in a city",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
)
CLOCK = FunctionTool(name="get_time")

SUITE_SCRIPT = Script(
    rules=(
        Rule(when=BREAK, text="This breaks", error=Trouble(at="after", message="The line went dead.")),
        Rule(when=REFUSE, error=Trouble(status=400, message="No.")),
        Rule(text="Hello to you, whoever you are."),
    )
)


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


def play(backend: ScriptedBackend, *items: dict[str, Any], **options: Any) -> list[BackendEvent]:
    """All events of the answer to some items."""

    async def run() -> list[BackendEvent]:
        segment = backend.transcribe(to_items(list(items)), Profile(), at_start=True)
        ask = Ask(
            model=options.pop("model", "scripted"),
            profile=Profile(),
            system=segment.lead,
            transcript=[segment.body] if segment.body else [],
            **options,
        )
        return flatten([batch async for batch in backend.stream(ask)])

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def play_script(text: str, *items: dict[str, Any], **options: Any) -> list[BackendEvent]:
    """All events of the answer of a script."""
    return play(ScriptedBackend(script=parse_script(text)), *items, **options)


def say(*items: dict[str, Any], **options: Any) -> str:
    """The text that the demo answers."""
    return join_text(play(ScriptedBackend(), *items, **options))


def get_usage(events: list[BackendEvent]) -> BackendUsage:
    """The usage of an answer that finished."""
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.usage is not None
    return last.usage


def get_calls(events: list[BackendEvent]) -> list[tuple[str, Any]]:
    """Names and decoded arguments of the calls."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for event in events:
        if isinstance(event, CallDelta):
            names[event.index] = names.get(event.index, "") + event.name
            arguments[event.index] = arguments.get(event.index, "") + event.arguments
    return [(names[index], msgspec.json.decode(arguments[index])) for index in names]


@pytest.mark.parametrize("check", CHECKS, ids=name_check)
def test_the_scripted_backend_keeps_the_contract(check: Check) -> None:
    """The interface's docstring."""

    async def run() -> None:
        backend = ScriptedBackend(script=SUITE_SCRIPT)

        async def wait_idle() -> None:
            while backend.streams_open:
                await asyncio.sleep(0)

        await asyncio.wait_for(check(Subject(backend, "scripted", wait_idle)), TIMEOUT_S)

    asyncio.run(run())


# The demo: it answers from what is in the window.


@pytest.mark.parametrize(
    ("told", "question", "word"),
    [
        ("Remember the code word: marmalade.", "What was the code word?", "marmalade"),
        (
            "Please remember this: the secret word is quokka-77. Answer only: noted.",
            "What is the secret word that I told you? Answer with that word alone.",
            "quokka-77",
        ),
        ("The code word is BLUE42. Reply OK.", "Which code word did I give you?", "BLUE42"),
        ("My name is Ada.", "what's my name?", "Ada"),
        ("Call me Bob", "What is my name?", "Bob"),
        ("Remember the number 7731", "What number did I tell you?", "7731"),
        ("My favourite colour is teal. Just say ok.", "Tell me my favourite colour", "teal"),
        ("Remember: tangerine", "What did I ask you to remember?", "tangerine"),
        ('Our launch code is "alpha beta".', "What is the launch code?", "alpha beta"),
        ("The password = x7f.9", "Repeat the password.", "x7f.9"),
    ],
)
def test_the_demo_remembers_what_stands_in_the_window_and_nothing_else(
    told: str, question: str, word: str
) -> None:
    """Ours: a check by planted words must pass on it, and only with the history."""
    noted = say(user(told))
    assert word in noted
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": noted}]}
    assert word in say(user(told), answer, user(question))
    assert say(user(question)) == "I do not know."


def test_the_demo_answers_with_the_newest_word() -> None:
    """Ours."""
    first, second = user("The code word is apple."), user("The code word is now pear.")
    assert say(first, second, user("What is the code word? One word only.")) == "pear"


def test_the_demo_tells_all_words_when_asked_for_all() -> None:
    """Ours: a branch of a conversation knows the words of its own path."""
    told = [user("The secret word is apple."), user("Another secret word is pear. Answer only: noted.")]
    assert say(*told, user("Which secret words did I tell you? Answer with all of them.")) == "apple, pear"


def test_the_demo_s_answer_to_a_tool_s_output_tells_what_the_question_told() -> None:
    """Ours: the second round of a tool loop shows whether it has the first one's question."""
    asked = user("The secret word is plum. Open the door, then answer with the secret word and the number.")
    call = {"type": "function_call", "call_id": "c1", "name": "open", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "4711"}
    assert say(asked, call, output) == "open returned: 4711\nThe secret word is plum."


def test_the_demo_reads_leading_system_text() -> None:
    """Ours: the system text is part of the window."""
    system = {"role": "system", "content": "The project name is Halyard."}
    assert say(system, user("What is the project name?")) == "The project name is Halyard."


def test_a_question_tells_nothing() -> None:
    """Ours: else the demo would recall words out of the question itself."""
    assert (
        list(find_facts("What is the code word I asked you to remember? Tell me the word that it is")) == []
    )
    assert list(find_facts("My cat is called Tom and the dog is Rex.")) == [
        Fact("cat", "Tom"),
        Fact("dog", "Rex"),
    ]


def test_the_demo_says_honestly_what_it_is() -> None:
    """Ours."""
    assert "scripted model" in say(user("Write a poem"))
    assert "2 user messages" in say(user("Write a poem"), user("Another"))


def test_a_tool_that_the_user_names_is_called_and_its_output_repeated() -> None:
    """Ours: the tool loop of the demo."""
    asked = user("Use get_weather for Oslo in fahrenheit.")
    events = play(ScriptedBackend(), asked, tools=[CLOCK, WEATHER])
    assert get_calls(events) == [("get_weather", {"city": "Oslo", "unit": "fahrenheit"})]
    call = {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "12 degrees"}
    assert say(asked, call, output, tools=[WEATHER]) == "get_weather returned: 12 degrees"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, []),
        ({"tool_choice": "required"}, ["get_time"]),
        ({"forced_tool": "get_weather"}, ["get_weather"]),
        ({"tool_choice": "none"}, []),
    ],
)
def test_the_tool_choice_is_obeyed(options: dict[str, Any], names: list[str]) -> None:
    """Interface: `tool_choice` and `forced_tool`."""
    events = play(ScriptedBackend(), user("Good morning"), tools=[CLOCK, WEATHER], **options)
    assert [name for name, _ in get_calls(events)] == names


@pytest.mark.parametrize(("parallel", "count"), [(True, 2), (None, 2), (False, 1)])
def test_parallel_calls_are_made_unless_forbidden(parallel: bool | None, count: int) -> None:
    """Interface: `parallel_tool_calls`."""
    text = "Call get_time and get_weather for Rome."
    events = play(ScriptedBackend(), user(text), tools=[CLOCK, WEATHER], parallel_tool_calls=parallel)
    assert len(get_calls(events)) == count


def test_a_json_schema_is_filled_from_the_window() -> None:
    """Ours: a minimal valid instance, the recalled word where a string is asked for."""
    schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
    text = say(
        user("The code word is plum."),
        user("What is the code word?"),
        text_format=TextFormat("json_schema", "answer", schema),
    )
    assert msgspec.json.decode(text) == {"word": "plum"}
    loose = say(user("What is the code word?"), text_format=TextFormat("json_object"))
    assert msgspec.json.decode(loose) == {"answer": "I do not know."}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 300},
        {"type": "string", "maxLength": 2},
        {"type": "integer", "minimum": 7, "maximum": 9},
        {"type": "integer", "exclusiveMinimum": 7},
        {"type": "integer", "multipleOf": 5, "minimum": 11},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
        {"type": "number", "maximum": -3},
        {"type": ["null", "boolean"]},
        {"type": "null"},
        {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2},
        {"const": 4},
        {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"required": ["b"]}]},
        {"$defs": {"p": {"type": "object", "required": ["x"]}}, "$ref": "#/$defs/p"},
        {"type": "object", "properties": {"a": {"type": "string", "format": "date"}}, "required": ["a"]},
    ],
)
def test_an_instance_is_valid_for_its_schema(schema: dict[str, Any]) -> None:
    """JSON Schema 2020-12, checked by an independent validator."""
    jsonschema.validate(build_instance(schema, Source("Some 12 words in Paris")), schema)


#: Values that some keyword does not take.
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.1,
    10**30,
    1e300,
    "x",
    "#/a/b",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
)
KEYWORDS = sorted({*_FORMS, "const", "default", "items"})


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("kind", ["string", "integer", "number", "array", "object"])
def test_a_keyword_with_an_odd_value_breaks_nothing(keyword: str, kind: str) -> None:
    """Ours: clients send schemas that are none, and large numbers; the same inside a branch."""
    for value in ODD_VALUES:
        for schema in ({"type": kind, keyword: value}, {keyword: value}):
            for whole in (schema, {"allOf": [schema]}, {"anyOf": [schema]}):
                made = msgspec.json.encode(build_instance(whole, Source("Some 12 words in Paris")))
                assert len(made) < 200_000


def test_a_schema_that_refers_to_itself_ends() -> None:
    """Ours: no schema may hang the demo."""
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert build_instance(schema, Source("word")) == "word"


# Counting.


def test_a_continued_window_counts_like_the_same_history_in_full() -> None:
    """Ours: replayed items lose ids and status and change their form; the count stays."""
    stored = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Noted: plum.", "annotations": [], "logprobs": []}],
    }
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}
    told, question = user("The code word is plum."), user("What is the code word?")
    by_id = play(ScriptedBackend(), told, reasoning, stored, question)
    in_full = play(ScriptedBackend(), told, {"role": "assistant", "content": "Noted: plum."}, question)
    assert get_usage(by_id) == get_usage(in_full)


def test_tokens_are_counted_as_documented() -> None:
    """The rule in the window's docstring, by hand: opening 3, message 4 + "Say hello, please." 5."""
    assert count_text("a b, c_d é!") == 6
    usage = get_usage(play(ScriptedBackend(script=SUITE_SCRIPT), user(HELLO)))
    assert usage == BackendUsage(3 + 4 + 5, count_text("Hello to you, whoever you are."), 0, 0, 0)


def test_system_text_tools_and_images_are_counted() -> None:
    """Ours: everything that the model is shown."""
    backend = ScriptedBackend()
    plain = get_usage(play(backend, user("Hi"))).input_tokens
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    picture = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, image]}
    assert get_usage(play(backend, picture)).input_tokens == plain + 85
    assert get_usage(play(backend, user("Hi"), tools=[CLOCK])).input_tokens > plain
    assert get_usage(play(backend, user("Hi"), tools=[CLOCK], tool_choice="none")).input_tokens == plain
    system = {"role": "system", "content": "Be brief."}
    assert get_usage(play(backend, system, user("Hi"))).input_tokens == plain + 4 + 3


@pytest.mark.parametrize("limit", range(1, 12))
def test_the_output_limit_cuts_at_a_token(limit: int) -> None:
    """Interface: `max_output_tokens`; the answer has 7 tokens of text after 2 of reasoning."""
    script = """
    [[answers]]
    reasoning = "Think twice"
    text = "One two, three four five six"
    """
    events = play_script(script, user("Go"), max_output_tokens=limit)
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == ("length" if limit < 9 else "stop")
    assert get_usage(events).output_tokens == min(limit, 9)
    assert "One two, three four five six".startswith(join_text(events))


def test_a_call_that_does_not_fit_the_limit_is_cut() -> None:
    """Ours: an unfinished call ends with `length`."""
    script = '[[answers]]\ncalls = [{name = "f", arguments = {a = "one two three four five"}}]'
    events = play_script(script, user("Go"), max_output_tokens=8)
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "length"
    assert get_usage(events).output_tokens == 8
    assert len(events) == len(play_script(script, user("Go"), max_output_tokens=4)) + 2


def test_a_prompt_that_fills_the_window_is_refused_with_the_numbers() -> None:
    """Ours: as real servers do, before anything is generated."""
    backend = ScriptedBackend(script=parse_script('window_tokens = 12\nanswers = [{text = "a b c d"}]'))
    with pytest.raises(ContextOverflowError) as raised:
        play(backend, user("one two three four five"))
    assert (raised.value.prompt_tokens, raised.value.window_tokens) == (12, 12)
    events = play(backend, user("one two"))
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "length"
    assert get_usage(events) == BackendUsage(9, 3, 0, 0, 0)


# The language of scripts.


def test_answers_are_played_by_the_round_in_the_window() -> None:
    """Ours: the script holds no state, so any request can be asked again."""
    script = 'answers = [{text = "first"}, {calls = [{name = "f"}]}, {text = "third"}]'
    told = [
        user("a"),
        {"role": "assistant", "content": "first"},
        user("b"),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    assert join_text(play_script(script, *told[:1])) == "first"
    assert get_calls(play_script(script, *told[:3])) == [("f", {})]
    assert join_text(play_script(script, *told)) == "third"
    ended = [*told, {"role": "assistant", "content": "third"}, user("c")]
    with pytest.raises(BackendError, match="no answer for round 4"):
        play_script(script, *ended)


def test_an_answer_holds_all_that_a_model_can_send() -> None:
    """Ours: every kind of delta, in order."""
    script = """
    [[answers]]
    reasoning = "Hm"
    texts = ["Hel", "lo"]
    refusal = "No"
    calls = [{name = "f", arguments = '{"a": 1', id = "call_9"}]
    finish = "content_filter"
    usage = {input_tokens = 1, output_tokens = 2}
    """
    assert play_script(script, user("Go")) == [
        Opened(),
        ReasoningDelta("Hm"),
        TextDelta("Hel"),
        TextDelta("lo"),
        RefusalDelta("No"),
        CallDelta(0, "call_9", "f", ""),
        CallDelta(0, "", "", '{"a": '),
        CallDelta(0, "", "", "1"),
        Finished("content_filter", BackendUsage(1, 2)),
    ]


def test_an_answer_may_be_empty_and_tell_no_usage() -> None:
    """Ours: the empty generation of real servers."""
    assert play_script("answers = [{usage = false}]", user("Go")) == [Opened(), Finished("stop")]


def test_deltas_hold_as_many_words_as_told() -> None:
    """Ours: `chunk`."""
    events = play_script('answers = [{text = "a b c d e", chunk = 2}]', user("Go"))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["a b ", "c d ", "e"]


def test_log_probabilities_are_given_when_asked_for() -> None:
    """Responses shape of logprobs: token, logprob, bytes, top_logprobs."""
    script = 'answers = [{text = "hé"}]'
    entry = {"token": "hé", "logprob": 0.0, "bytes": [104, 195, 169]}
    assert play_script(script, user("Go"))[1] == TextDelta("hé")
    assert play_script(script, user("Go"), top_logprobs=0)[1] == TextDelta(
        "hé", [{**entry, "top_logprobs": []}]
    )
    assert play_script(script, user("Go"), top_logprobs=2)[1] == TextDelta(
        "hé", [{**entry, "top_logprobs": [entry]}]
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("status = 401", BackendAuthError),
        ("status = 429", BackendRateLimitError),
        ("status = 504", BackendTimeoutError),
        ("status = 422", BackendRefusedError),
        ("status = 500", BackendError),
        ('code = "context_length_exceeded"', ContextOverflowError),
    ],
)
@pytest.mark.parametrize("at", ["before", "after"])
def test_an_error_is_what_a_real_server_s_would_be(fields: str, expected: type, at: str) -> None:
    """Error tree: who must act."""
    script = f'answers = [{{text = "Half", error = {{at = "{at}", message = "Told so.", {fields}}}}}]'
    if at == "before":
        with pytest.raises(BackendError, match="Told so") as raised:
            play_script(script, user("Go"))
        assert type(raised.value) is expected
        return
    *events, last = play_script(script, user("Go"))
    assert events == [Opened(), TextDelta("Half")]
    assert isinstance(last, Failed)
    assert type(last.error) is expected


def test_the_first_rule_whose_conditions_all_hold_answers() -> None:
    """Ours: rules before answers."""
    script = """
    answers = [{text = "none"}]
    [[rules]]
    when = "(?i)hello"
    model = "polite"
    text = "Good day"
    [[rules]]
    when = "(?i)hello"
    text = "Hi"
    [[rules]]
    after_output = true
    text = "Done"
    """
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    assert join_text(play_script(script, user("Hello"), model="polite")) == "Good day"
    assert join_text(play_script(script, user("Hello"))) == "Hi"
    assert join_text(play_script(script, user("Bye"), output)) == "Done"
    assert join_text(play_script(script, user("Bye"))) == "none"


def test_a_script_is_the_same_in_toml_and_json(tmp_path: Path) -> None:
    """Ours."""
    toml, json = tmp_path / "s.toml", tmp_path / "s.json"
    toml.write_text('models = ["a", "b"]\nanswers = [{text = "x"}]')
    json.write_text('{"models": ["a", "b"], "answers": [{"text": "x"}]}')
    assert load_script(toml) == load_script(json)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("answers = [{txt = 'x'}]", "txt"),
        ("answers = [{text = 'x', act = 'note'}]", "Only one of"),
        ("rules = [{when = '('}]", "no regular expression"),
        ("models = ['a']", "needs `rules` or `answers`"),
        ("models = []\nanswers = [{}]", "length"),
        ("answers = [{chunk = 0}]", "chunk"),
        ("answers = [", "Invalid"),
    ],
)
def test_a_script_that_cannot_be_played_says_why(tmp_path: Path, text: str, problem: str) -> None:
    """Ours: a misspelt key is an error, never ignored."""
    path = tmp_path / "script.toml"
    path.write_text(text)
    with pytest.raises(ScriptError) as raised:
        load_script(path)
    assert problem in raised.value.message
    assert "script.toml" in raised.value.message


def test_a_script_that_is_not_there_says_so(tmp_path: Path) -> None:
    """Ours."""
    with pytest.raises(ScriptError, match="cannot be read"):
        load_script(tmp_path / "none.toml")


def test_the_script_s_models_are_listed_with_its_window() -> None:
    """Interface: `list_models`."""
    backend = ScriptedBackend(script=parse_script('models = ["a", "b"]\nwindow_tokens = 99\nanswers = [{}]'))
    facts = asyncio.run(backend.list_models())
    assert [(one.name, one.profile.window_tokens) for one in facts] == [("a", 99), ("b", 99)]
