"""Probes of errors: a request that is wrong is refused, by name, and in the API's shape.

Each sends one request that is wrong in one way. A refusal is a 4xx; an answer means that the fault went
unnoticed, and a 5xx that the server broke on it.
"""

from typing import Any

from antiphon.checker.answers import Answer, Refusal
from antiphon.checker.requirements.speaking import GREETING
from antiphon.checker.subject import Subject
from antiphon.checker.verdicts import Outcome, Verdict, failed, passed, undecided

#: The members of an error object.
ERROR_KEYS = ("message", "type", "param", "code")
#: A server that is only unable right now.
_BUSY = (429, 503, 504)


async def probe_shape(subject: Subject) -> Outcome:
    """The body of a refusal."""
    answer, body = await subject.send(model=subject.model, input=GREETING, temperature="warm")
    if isinstance(answer, Answer):
        answer, body = await subject.send(
            model=subject.model, input=GREETING, previous_response_id=subject.make_id("resp")
        )
    if isinstance(answer, Answer):
        return undecided("the server refuses nothing, so no error could be seen")
    if answer.status in _BUSY:
        return undecided(f"the server is not ready ({answer})")
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return failed(f"a refusal has no error object ({answer})", http_status=answer.status)
    missing = [name for name in ERROR_KEYS if name not in error]
    if missing:
        return failed(f"the error object has no {', '.join(missing)}", http_status=answer.status)
    wrong = [name for name in ("message", "type") if not isinstance(error[name], str) or not error[name]]
    wrong += [name for name in ("param", "code") if not isinstance(error[name], str | None)]
    if wrong:
        return failed(f"in the error object these are no text: {', '.join(wrong)}", http_status=answer.status)
    return passed(f"the error object has all four members ({answer})", http_status=answer.status)


async def probe_unknown_parameter(subject: Subject) -> Outcome:
    """A top-level parameter that the API does not have."""
    name = f"{subject.make_word()}_level"
    return await _expect_named(subject, name, {"input": GREETING, name: 3}, "an unknown parameter")


async def probe_wrong_type(subject: Subject) -> Outcome:
    """A number as input, a text as max_output_tokens."""
    first = await _expect_named(subject, "input", {"input": 7}, "a number as input")
    if first.verdict is not Verdict.PASS:
        return first
    fields = {"input": GREETING, "metadata": "none"}
    return await _expect_named(subject, "metadata", fields, "a text as metadata")


async def probe_bad_enum(subject: Subject) -> Outcome:
    """A value of truncation that the API does not have."""
    fields = {"input": GREETING, "truncation": "sometimes"}
    return await _expect_named(subject, "truncation", fields, "truncation 'sometimes'")


async def probe_missing_model(subject: Subject) -> Outcome:
    """No model."""
    return _judge_named((await subject.send(input=GREETING))[0], "model", "a request without a model")


async def probe_missing_input(subject: Subject) -> Outcome:
    """Neither input nor anything to continue."""
    return await _expect_named(subject, "input", {}, "a request without input")


async def probe_empty_input(subject: Subject) -> Outcome:
    """An empty list of items, and nothing to continue."""
    return await _expect_named(subject, "input", {"input": []}, "an empty input")


async def probe_unknown_model(subject: Subject) -> Outcome:
    """A model that no server has."""
    answer, _ = await subject.send(model=f"{subject.make_word()}-model", input=GREETING)
    if isinstance(answer, Answer):
        told = f"an unknown model was answered, as {str(answer.body.get('model'))[:80]}"
        return failed(told, status=answer.status)
    if answer.status in _BUSY:
        return undecided(f"the server is not ready ({answer})")
    if answer.status in (400, 404) and answer.code == "model_not_found":
        return passed(f"refused ({answer})", http_status=answer.status, code=answer.code)
    return failed(
        f"refused, but not by 400 or 404 with the code model_not_found ({answer})", http_status=answer.status
    )


async def probe_unknown_get(subject: Subject) -> Outcome:
    """GET a response, and list its input items, by an id that nobody gave out."""
    unknown = subject.make_id("resp")
    answers: dict[str, Any] = {
        "GET": await subject.retrieve(unknown),
        "GET input_items": await subject.list_input_items(unknown),
    }
    for what, answer in answers.items():
        if not isinstance(answer, Refusal):
            return failed(f"{what} of an unknown id is answered")
        if answer.status != 404:
            return failed(f"{what} of an unknown id is refused, but not by 404 ({answer})")
    return passed(f"404 for GET and for its input items ({answers['GET']})", http_status=404)


async def _expect_named(subject: Subject, name: str, fields: dict[str, Any], what: str) -> Outcome:
    answer, _ = await subject.send(model=subject.model, **fields)
    return _judge_named(answer, name, what)


def _judge_named(answer: Answer | Refusal, name: str, what: str) -> Outcome:
    """Refused by a 4xx that names the parameter."""
    if isinstance(answer, Answer):
        return failed(f"{what} was answered (status {answer.status})", status=answer.status, text=answer.text)
    evidence = {"http_status": answer.status, "code": answer.code, "param": answer.param}
    if answer.status in _BUSY:
        return undecided(f"{what}: the server is not ready ({answer})", **evidence)
    if not 400 <= answer.status < 500:
        return failed(f"{what} is not refused by a 4xx ({answer})", **evidence)
    if answer.param == name or name in answer.message:
        return passed(f"{what} was refused by name ({answer})", **evidence)
    return failed(f"{what} was refused without saying that it is about {name!r} ({answer})", **evidence)
