"""Probes of honesty: what a server cannot do, it must refuse instead of answering as if it had.

A refusal is a 4xx or a failed response; a server that is only unable right now decides nothing.
"""

from antiphon.checker.answers import Answer, Refusal
from antiphon.checker.requirements.speaking import GREETING, call_tool, make_output
from antiphon.checker.subject import Subject, user
from antiphon.checker.verdicts import Outcome, failed, passed, undecided

NOT_FOUND = "previous_response_not_found"


async def probe_unknown_id(subject: Subject) -> Outcome:
    """Continue an id that nobody gave out."""
    return await _continue_unknown(subject, stream=False)


async def probe_unknown_id_streaming(subject: Subject) -> Outcome:
    """The same, streamed."""
    return await _continue_unknown(subject, stream=True)


async def _continue_unknown(subject: Subject, stream: bool) -> Outcome:
    """400 with the code is the API's answer; 404 with the same code is as honest and as easy to tell."""
    answer = await subject.create([user(GREETING)], previous=subject.make_id("resp"), stream=stream)
    if isinstance(answer, Answer):
        told = f"an unknown id was answered (status {answer.status}) as if there were no history"
        return failed(told, status=answer.status, text=answer.text)
    evidence = {"http_status": answer.status, "code": answer.code, "param": answer.param}
    if answer.code == NOT_FOUND:
        return passed(f"refused ({answer})", **evidence)
    return failed(f"refused, but without the code {NOT_FOUND} ({answer})", **evidence)


async def probe_wrong_call_id(subject: Subject) -> Outcome:
    """The output of a call that nobody made."""
    first = await subject.ask([user(GREETING)])
    output = make_output(subject.make_id("call"), "42")
    answer = await subject.create([output], previous=first.id)
    return _judge_unpaired(answer, "an output without a call")


async def probe_missing_output(subject: Subject) -> Outcome:
    """A call, then a message that passes it over."""
    first = await call_tool(subject, [user("Open the vault named door with the tool.")])
    answer = await subject.create([user("Never mind the vault. Say hello.")], previous=first.id)
    return _judge_unpaired(answer, "a call without an output")


def _judge_unpaired(answer: Answer | Refusal, what: str) -> Outcome:
    if isinstance(answer, Answer):
        return failed(f"{what} was answered (status {answer.status})", status=answer.status, text=answer.text)
    if answer.is_clients_fault:
        return passed(f"{what} was refused ({answer})", http_status=answer.status, code=answer.code)
    return undecided(f"{what}: the request failed without being refused ({answer})")
