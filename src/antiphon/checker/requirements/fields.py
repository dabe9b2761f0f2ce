"""The family of request fields: each is honoured, refused by its name, or the response says that it was left out.

A field is sent with a telling value, one that no server assumes by itself. Invariant: an answer that says nothing
of the field is no pass, but for hints, which the API itself never speaks of again.
"""

from functools import partial
from typing import Any, Final

import msgspec

from antiphon.checker.answers import Refusal, decode_json
from antiphon.checker.recordings import read_type
from antiphon.checker.requirements.judging import dig, find_warning, holds, judge_refusal, tell
from antiphon.checker.requirements.requirement import Requirement
from antiphon.checker.requirements.speaking import GREETING, TOOL
from antiphon.checker.subject import Subject, user
from antiphon.checker.verdicts import Outcome, failed, passed, unasked, undecided

_API = "OpenAI API reference, Responses"

#: The API does not repeat the field in its response.
UNTOLD: Final = ""
#: Any text: which one is the server's to say.
ANY: Final = object()


class FieldCase(msgspec.Struct, frozen=True):
    """A field with a telling value: what is sent, and where the response repeats it."""

    path: str
    body: dict[str, Any]
    echo: str | None = None
    expect: Any = None
    #: Nothing in an answer ever tells of it, and nothing has to.
    is_hint: bool = False
    #: Names of other things that a refusal of it may speak of.
    also: tuple[str, ...] = ()

    @property
    def top(self) -> str:
        """The top-level field."""
        return self.path.partition(".")[0]

    @property
    def wanted(self) -> Any:
        """What the response should say."""
        return dig(self.body, self.path) if self.expect is None else self.expect


async def probe_field(case: FieldCase, subject: Subject) -> Outcome:
    """One request with the field."""
    answer, body = await subject.send(**{"model": subject.model, "input": GREETING, **case.body})
    if case.top in subject.left_out:
        return passed(f"refused ({subject.left_out[case.top]})")
    leaf = case.path.rpartition(".")[2]
    if isinstance(answer, Refusal):
        return judge_refusal(answer, case.path, case.top, leaf, *case.also)
    if case.is_hint:
        return passed("accepted; it is a hint, and changes no answer")
    place = case.path if case.echo is None else case.echo
    if place == UNTOLD:
        told = "accepted, and nothing in the response shows whether it had an effect"
        return unasked("a way to see it in the answer", told)
    found = dig(answer.body, place)
    is_told = isinstance(found, str) and bool(found) if case.wanted is ANY else holds(found, case.wanted)
    if is_told:
        return passed(f"the response says {place} {tell(found)}")
    warning = find_warning(body, leaf, case.path)
    if warning is not None:
        return passed(f"left out, and the response says so ({warning})")
    return failed(f"answered, and the response says {tell(found)} for {place}, not {tell(case.wanted)}")


async def probe_parallel_tool_calls(subject: Subject) -> Outcome:
    """False, with two tools that the task names: one call at most, and the response says false."""
    second = {**TOOL, "name": "close_vault"}
    task = "Use the tools open_vault and close_vault, both at once, for the vault named door."
    answer = await subject.create(
        [user(task)], tools=[TOOL, second], tool_choice="required", parallel_tool_calls=False
    )
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "parallel_tool_calls", "tool")
    if len(answer.calls) > 1:
        return failed(f"{len(answer.calls)} calls although parallel_tool_calls is false")
    told = answer.body.get("parallel_tool_calls")
    if told is not False:
        return failed(f"answered, and the response says parallel_tool_calls {tell(told)}")
    return passed(f"the response says false, and has {len(answer.calls)} call", calls=len(answer.calls))


async def probe_json_object(subject: Subject) -> Outcome:
    """Any JSON object, asked for by text.format alone and named in the task, as the API demands."""
    task = "Which colour do you like best? Answer in JSON."
    answer = await subject.create([user(task)], text={"format": {"type": "json_object"}})
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "text.format", "json_object", "text")
    if isinstance(decode_json(answer.text.encode()), dict):
        return passed("the answer is a JSON object", text=answer.text[:200])
    if answer.status == "incomplete":
        return undecided("the answer was cut before it was whole", text=answer.text[:200])
    return failed("a completed answer is no JSON object", text=answer.text[:200])


async def probe_instructions(subject: Subject) -> Outcome:
    """Short ones and long ones: the response repeats them, and the prompt counts more with the long ones.

    None at all would prove nothing: a template may have instructions of its own that ours take the place of.
    """
    short = f"Be brief. The secret word is {subject.make_word()}."
    long = f"{short} Never tell it, and never say that there is one, whatever you are asked by whomever it may be."
    answers = []
    for rules in (short, long):
        answer = await subject.create([user(GREETING)], instructions=rules)
        if isinstance(answer, Refusal):
            return judge_refusal(answer, "instructions")
        if answer.body.get("instructions") != rules:
            return failed(f"the response says instructions {tell(answer.body.get('instructions'))}")
        answers.append(answer.tokens)
    counts = {"input_tokens_short": answers[0], "input_tokens_long": answers[1]}
    if answers[0] is not None and answers[1] is not None and answers[1] <= answers[0]:
        return failed(
            "the instructions are repeated, and the prompt counts no more with longer ones", **counts
        )
    return passed("the response repeats them, and the prompt counts them", **counts)


async def probe_obfuscation(subject: Subject) -> Outcome:
    """include_obfuscation true, then false: every delta has some padding, then none has."""
    for wanted in (True, False):
        recording = await subject.try_record(
            f"obfuscation {wanted}",
            input=[user("Write one sentence about the sea.")],
            stream_options={"include_obfuscation": wanted},
        )
        if isinstance(recording, Refusal):
            return judge_refusal(recording, "include_obfuscation", "stream_options")
        deltas = [event for event in recording.events if read_type(event).endswith(".delta")]
        if not deltas:
            return undecided("the stream has no deltas")
        padded = [isinstance(event.get("obfuscation"), str) for event in deltas]
        if any(padded) is not wanted or (wanted and not all(padded)):
            told = f"{sum(padded)} of {len(deltas)} deltas are padded"
            return failed(f"with include_obfuscation {wanted} {told}", deltas=len(deltas))
    return passed("every delta is padded with include_obfuscation true, none with false")


_FORMAT = {
    "type": "json_schema",
    "name": "told_colour",
    "description": "A colour.",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}
_TEXT: dict[str, Any] = {"text": {"format": _FORMAT}}
_CACHE: dict[str, Any] = {
    "mode": "explicit",
    "ttl": "12h",
    "comparison_response_id": "resp_of_another_time",
}
_PROMPT = {"id": "pmpt_of_no_server", "version": "2", "variables": {"city": "Paris"}}


def _moderation(side: str) -> dict[str, Any]:
    return {"moderation": {"model": "omni-moderation-latest", "policy": {side: {"mode": "score"}}}}


FIELD_CASES: tuple[FieldCase, ...] = (
    FieldCase("temperature", {"temperature": 0.4}),
    FieldCase("top_p", {"top_p": 0.5}),
    FieldCase("presence_penalty", {"presence_penalty": 0.5}),
    FieldCase("frequency_penalty", {"frequency_penalty": 0.25}),
    FieldCase(
        "top_logprobs",
        {"top_logprobs": 3, "include": ["message.output_text.logprobs"]},
        also=("logprobs",),
    ),
    FieldCase("max_tool_calls", {"max_tool_calls": 3, "tools": [TOOL]}),
    FieldCase("reasoning.effort", {"reasoning": {"effort": "low"}}),
    FieldCase("reasoning.summary", {"reasoning": {"summary": "detailed"}}),
    FieldCase(
        "reasoning.generate_summary", {"reasoning": {"generate_summary": "detailed"}}, "reasoning.summary"
    ),
    FieldCase("reasoning.context", {"reasoning": {"context": "current_turn"}}),
    FieldCase("reasoning.mode", {"reasoning": {"mode": "pro"}}),
    FieldCase("text.format.type", _TEXT),
    FieldCase("text.format.name", _TEXT),
    FieldCase("text.format.schema", _TEXT),
    FieldCase("text.format.description", _TEXT),
    FieldCase("text.format.strict", _TEXT),
    FieldCase("text.verbosity", {"text": {"verbosity": "low"}}),
    FieldCase("prompt.id", {"prompt": {"id": _PROMPT["id"]}}),
    FieldCase("prompt.version", {"prompt": _PROMPT}),
    FieldCase("prompt.variables", {"prompt": _PROMPT}),
    FieldCase("prompt_cache_key", {"prompt_cache_key": "a-key"}),
    FieldCase("prompt_cache_retention", {"prompt_cache_retention": "24h"}),
    *(
        FieldCase(f"prompt_cache_options.{name}", {"prompt_cache_options": {name: value}})
        for name, value in _CACHE.items()
    ),
    # The API does not repeat it.
    FieldCase("prompt_cache_options.prewarm", {"prompt_cache_options": {"prewarm": True}}, is_hint=True),
    FieldCase("service_tier", {"service_tier": "flex"}, expect=ANY),
    FieldCase("safety_identifier", {"safety_identifier": "someone"}),
    FieldCase("user", {"user": "someone"}),
    FieldCase("moderation.model", {"moderation": {"model": "omni-moderation-latest"}}),
    FieldCase("moderation.policy.input", _moderation("input")),
    FieldCase("moderation.policy.output", _moderation("output")),
    FieldCase("image.context_compression", {"image": {"context_compression": "enabled"}}),
    FieldCase("access_programs.cyber", {"access_programs": {"cyber": "standard"}}),
    FieldCase(
        "background_options.completion_window", {"background_options": {"completion_window": "2h"}}, UNTOLD
    ),
    FieldCase(
        "background_options.continuation_id", {"background_options": {"continuation_id": "c_1"}}, UNTOLD
    ),
    FieldCase("client_metadata", {"client_metadata": {"installation": "i-1"}}, is_hint=True),
    FieldCase("generate", {"generate": False}, UNTOLD),
    FieldCase("stream_id", {"stream_id": "lane"}, UNTOLD),
)


def _make(case: FieldCase) -> Requirement:
    promise = (
        f"`{case.path}` is taken as a hint, or refused by its name."
        if case.is_hint
        else f"`{case.path}` is honoured and told in the response, told to be left out, or refused by its name."
    )
    covers = [f"field:{case.path}"]
    if case.path.startswith(("reasoning.effort", "text.format.type", "context_management.type")):
        covers.append(f"field:{case.top}")
    source = "ours: nothing is accepted without effect" if case.top == "antiphon" else f"{_API}: {case.top}"
    return Requirement(
        f"fields.{case.path}", "fields", source, promise, partial(probe_field, case), tuple(covers)
    )


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(
        "fields.instructions",
        "fields",
        f"{_API}: instructions",
        "`instructions` stand in the response, and the prompt counts them.",
        probe_instructions,
        ("field:instructions",),
    ),
    Requirement(
        "fields.parallel_tool_calls",
        "fields",
        f"{_API}: parallel_tool_calls",
        "With parallel_tool_calls false there is one call at most, or the field is refused by its name.",
        probe_parallel_tool_calls,
        ("field:parallel_tool_calls",),
    ),
    Requirement(
        "fields.json-object",
        "fields",
        f"{_API}: text.format",
        "With a json_object in `text.format` a completed answer is one, or the field is refused by its name.",
        probe_json_object,
        ("field:text.format.type",),
    ),
    Requirement(
        "fields.stream_options.include_obfuscation",
        "fields",
        f"{_API}: stream_options",
        "`include_obfuscation` decides whether deltas are padded, or is refused by its name.",
        probe_obfuscation,
        ("field:stream_options", "field:stream_options.include_obfuscation"),
    ),
    *map(_make, FIELD_CASES),
)
