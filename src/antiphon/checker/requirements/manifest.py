"""The manifest: every requirement in one table, in the order in which they are probed.

Invariant: each requirement has one probe, and each probe stands here.
"""

from collections.abc import Iterable

from antiphon.checker.requirements import continuing, keeping, refusing
from antiphon.checker.requirements.requirement import Probe, Requirement

_API = "OpenAI API reference, Responses"
_GUIDE = "OpenAI guide, Conversation state"


def _state(name: str, source: str, sentence: str, probe: Probe) -> Requirement:
    return Requirement(f"state.{name}", "state", source, sentence, probe)


MANIFEST: tuple[Requirement, ...] = (
    _state(
        "continues",
        f"{_GUIDE}; ollama/ollama#15954",
        "A request with previous_response_id shows the model the whole history before it.",
        continuing.probe_continues,
    ),
    _state(
        "continues-streaming",
        f"{_GUIDE}",
        "The same holds for a request with stream:true.",
        continuing.probe_continues_streaming,
    ),
    _state(
        "tool-loop",
        f"{_API}: function calling; ollama/ollama#18419",
        "A round that sends only previous_response_id and a function_call_output has the whole history.",
        continuing.probe_tool_loop,
    ),
    _state(
        "branches",
        f"{_GUIDE}",
        "Two continuations of one response do not see each other.",
        continuing.probe_branches,
    ),
    _state(
        "unknown-id",
        f"{_API}: errors",
        "An unknown previous_response_id is refused with previous_response_not_found.",
        refusing.probe_unknown_id,
    ),
    _state(
        "unknown-id-streaming",
        f"{_API}: errors",
        "An unknown previous_response_id is refused with stream:true, too.",
        refusing.probe_unknown_id_streaming,
    ),
    _state(
        "store-false",
        f"{_API}: store",
        "A response with store:false can be neither retrieved nor continued.",
        keeping.probe_store_false,
    ),
    _state(
        "echo",
        f"{_API}: the response object",
        "A response names the one that it continues, and a first response names none.",
        keeping.probe_echo,
    ),
    _state(
        "wrong-call-id",
        f"{_API}: errors",
        "A function_call_output whose call_id nobody called is refused (by the API with 400).",
        refusing.probe_wrong_call_id,
    ),
    _state(
        "missing-output",
        f"{_API}: errors",
        "A continuation that leaves a function call unanswered is refused (by the API with 400).",
        refusing.probe_missing_output,
    ),
    _state(
        "replays-own-items",
        f"{_GUIDE}: managing state by hand",
        "The server takes its own output items back as input, as they came.",
        keeping.probe_replays_own_items,
    ),
    _state(
        "never-empty",
        "ollama/ollama#18419, #17118",
        "A completed answer has text, a call or a refusal.",
        keeping.probe_never_empty,
    ),
    _state(
        "instructions-not-inherited",
        f"{_API}: instructions",
        "The instructions of one response do not carry over to the next.",
        continuing.probe_instructions_not_inherited,
    ),
    _state(
        "retrieve",
        f"{_API}: get a response",
        "A stored response can be retrieved with the output that was sent.",
        keeping.probe_retrieve,
    ),
    _state(
        "input-items",
        f"{_API}: list input items",
        "The input items of a stored response can be listed.",
        keeping.probe_input_items,
    ),
    _state(
        "delete",
        f"{_API}: delete a response",
        "A deleted response can be neither retrieved nor continued.",
        keeping.probe_delete,
    ),
    _state(
        "long-chain",
        "ours: no silent truncation",
        "A long chain by previous_response_id keeps every round, or is refused openly.",
        continuing.probe_long_chain,
    ),
)


def select_requirements(only: Iterable[str] = ()) -> list[Requirement]:
    """The requirements whose id or area is named, all where nothing is; KeyError names what is unknown."""
    names = list(only)
    for name in names:
        if not any(name in (requirement.id, requirement.area) for requirement in MANIFEST):
            raise KeyError(name)
    return [item for item in MANIFEST if not names or item.id in names or item.area in names]
