"""The manifest: every requirement in one table, in the order in which they are probed.

Invariant: each requirement has one probe, and each probe stands here; requirements of one area stand together.
"""

from collections.abc import Iterable

from antiphon.checker.requirements import (
    backgrounding,
    compacting,
    compaction,
    context_managing,
    continuing,
    conversing,
    errors,
    events,
    fields,
    filling,
    honouring,
    isolating,
    items,
    keeping,
    open_responses,
    refusing,
    rejecting,
    restarting,
    serving,
    sockets,
    streaming,
    tools,
)
from antiphon.checker.requirements.requirement import Probe, Requirement

_API = "OpenAI API reference, Responses"
_GUIDE = "OpenAI guide, Conversation state"


_STREAMING = "OpenAI API reference, Responses: streaming events"
_ERRORS = f"{_API}: errors"


def _state(name: str, source: str, sentence: str, probe: Probe, *covers: str) -> Requirement:
    return Requirement(f"state.{name}", "state", source, sentence, probe, covers)


def _stream(name: str, source: str, sentence: str, probe: Probe, *covers: str) -> Requirement:
    return Requirement(f"stream.{name}", "stream", source, sentence, probe, covers)


def _error(name: str, source: str, sentence: str, probe: Probe, *covers: str) -> Requirement:
    return Requirement(f"errors.{name}", "errors", source, sentence, probe, covers)


def _field(name: str, source: str, sentence: str, probe: Probe, *covers: str) -> Requirement:
    return Requirement(f"fields.{name}", "fields", source, sentence, probe, covers)


_ROWS: tuple[Requirement, ...] = (
    _state(
        "continues",
        f"{_GUIDE}; ollama/ollama#15954",
        "A request with previous_response_id shows the model the whole history before it.",
        continuing.probe_continues,
        "field:previous_response_id",
        "field:input",
        "item:message",
    ),
    _state(
        "continues-streaming",
        f"{_GUIDE}",
        "The same holds for a request with stream:true.",
        continuing.probe_continues_streaming,
        "field:stream",
    ),
    _state(
        "tool-loop",
        f"{_API}: function calling; ollama/ollama#18419",
        "A round that sends only previous_response_id and a function_call_output has the whole history.",
        continuing.probe_tool_loop,
        "item:function_call_output",
    ),
    _state(
        "branches",
        f"{_GUIDE}",
        "Two continuations of one response do not see each other.",
        continuing.probe_branches,
        "field:previous_response_id",
    ),
    _state(
        "unknown-id",
        f"{_API}: errors",
        "An unknown previous_response_id is refused with previous_response_not_found.",
        refusing.probe_unknown_id,
        "error:previous_response_not_found",
    ),
    _state(
        "unknown-id-streaming",
        f"{_API}: errors",
        "An unknown previous_response_id is refused with stream:true, too.",
        refusing.probe_unknown_id_streaming,
        "error:previous_response_not_found",
    ),
    _state(
        "store-false",
        f"{_API}: store",
        "A response with store:false can be neither retrieved nor continued.",
        keeping.probe_store_false,
        "field:store",
    ),
    _state(
        "echo",
        f"{_API}: the response object",
        "A response names the one that it continues, and a first response names none.",
        keeping.probe_echo,
        "field:previous_response_id",
    ),
    _state(
        "wrong-call-id",
        f"{_API}: errors",
        "A function_call_output whose call_id nobody called is refused (by the API with 400).",
        refusing.probe_wrong_call_id,
        "error:output_without_call",
    ),
    _state(
        "missing-output",
        f"{_API}: errors",
        "A continuation that leaves a function call unanswered is refused (by the API with 400).",
        refusing.probe_missing_output,
        "error:call_without_output",
    ),
    _state(
        "replays-own-items",
        f"{_GUIDE}: managing state by hand",
        "The server takes its own output items back as input, as they came.",
        keeping.probe_replays_own_items,
        "field:input",
    ),
    _state(
        "never-empty",
        "ollama/ollama#18419, #17118",
        "A completed answer has text, a call or a refusal.",
        keeping.probe_never_empty,
        "output:message",
    ),
    _state(
        "instructions-not-inherited",
        f"{_API}: instructions",
        "The instructions of one response do not carry over to the next.",
        continuing.probe_instructions_not_inherited,
        "field:instructions",
    ),
    _state(
        "retrieve",
        f"{_API}: get a response",
        "A stored response can be retrieved with the output that was sent.",
        keeping.probe_retrieve,
        "endpoint:GET /responses/{id}",
    ),
    _state(
        "input-items",
        f"{_API}: list input items",
        "The input items of a stored response can be listed.",
        keeping.probe_input_items,
        "endpoint:GET /responses/{id}/input_items",
    ),
    _state(
        "delete",
        f"{_API}: delete a response",
        "A deleted response can be neither retrieved nor continued.",
        keeping.probe_delete,
        "endpoint:DELETE /responses/{id}",
    ),
    _state(
        "long-chain",
        "ours: no silent truncation",
        "A long chain by previous_response_id keeps every round, or is refused openly.",
        continuing.probe_long_chain,
        "field:previous_response_id",
    ),
    _state(
        "silent-truncation",
        "ours: no silent truncation",
        "A history that does not fit the window is refused, or the response says that it was shortened.",
        filling.probe_silent_truncation,
        "error:context_length_exceeded",
        "field:truncation",
    ),
    _stream(
        "order",
        _STREAMING,
        "The events come in the order of the lifecycle: created, in progress, each item from added to done, the end.",
        streaming.probe_order,
        "field:stream",
    ),
    _stream(
        "numbering",
        _STREAMING,
        "The events are numbered from 0, by one.",
        streaming.probe_numbering,
        "field:stream",
    ),
    _stream(
        "one-terminal",
        f"{_STREAMING}; ollama/ollama#17118",
        "A stream has exactly one terminal event, and nothing after it but [DONE].",
        streaming.probe_one_terminal,
        "field:stream",
    ),
    _stream(
        "deltas",
        _STREAMING,
        "The deltas make the text of the done event and of the finished item: texts, reasoning and arguments.",
        streaming.probe_deltas,
        "field:stream",
    ),
    _stream(
        "ids",
        _STREAMING,
        "The ids of the response, its items and calls stay the same from the first event to the last.",
        streaming.probe_ids,
        "field:stream",
    ),
    _stream(
        "final-response",
        _STREAMING,
        "The response of the terminal event holds the items that were streamed, and its status is the event's.",
        streaming.probe_final_response,
        "field:stream",
    ),
    _stream(
        "cut",
        f"{_API}: max_output_tokens",
        "A stream that max_output_tokens cuts ends in response.incomplete with that reason.",
        streaming.probe_cut,
        "field:max_output_tokens",
        "event:response.incomplete",
    ),
    _stream(
        "tool-call",
        f"{_STREAMING}; function calling",
        "A function call in a stream has its whole sequence: added, arguments in deltas, arguments done, done.",
        streaming.probe_tool_call,
        "output:function_call",
    ),
    _stream(
        "errors",
        f"{_STREAMING}: error",
        "A streaming request that fails gets an HTTP error, or its stream ends in exactly one response.failed.",
        streaming.probe_errors,
        "event:response.failed",
    ),
    _error(
        "shape",
        _ERRORS,
        "An error is an object under `error` with message, type, param and code.",
        rejecting.probe_shape,
        "error:error_object",
    ),
    _error(
        "unknown-parameter",
        _ERRORS,
        "An unknown top-level parameter is refused by its name.",
        rejecting.probe_unknown_parameter,
        "error:unknown_parameter",
    ),
    _error(
        "wrong-type",
        _ERRORS,
        "A parameter of the wrong type is refused by its name.",
        rejecting.probe_wrong_type,
        "error:invalid_type",
    ),
    _error(
        "bad-enum",
        _ERRORS,
        "A value that the API does not have is refused with the parameter's name.",
        rejecting.probe_bad_enum,
        "error:invalid_value",
    ),
    _error(
        "missing-model",
        _ERRORS,
        "A request without a model is refused.",
        rejecting.probe_missing_model,
        "error:missing_model",
        "field:model",
    ),
    _error(
        "missing-input",
        _ERRORS,
        "A request without input and without anything to continue is refused.",
        rejecting.probe_missing_input,
        "error:missing_input",
        "field:input",
    ),
    _error(
        "empty-input",
        _ERRORS,
        "An empty input without anything to continue is refused.",
        rejecting.probe_empty_input,
        "error:empty_input",
    ),
    _error(
        "unknown-model",
        _ERRORS,
        "An unknown model is refused by 400 or 404 with model_not_found.",
        rejecting.probe_unknown_model,
        "error:model_not_found",
        "field:model",
    ),
    _error(
        "unknown-get",
        f"{_API}: get a response",
        "GET of an unknown response, and of its input items, is answered with 404.",
        rejecting.probe_unknown_get,
        "error:response_not_found",
    ),
    _field(
        "truncation",
        f"{_API}: truncation",
        "`truncation` is honoured and told in the response, or refused.",
        honouring.probe_truncation,
        "field:truncation",
    ),
    _field(
        "store",
        f"{_API}: store",
        "The response says whether it is stored.",
        honouring.probe_store,
        "field:store",
    ),
    _field(
        "max-output-tokens",
        f"{_API}: max_output_tokens",
        "An answer is no longer than `max_output_tokens`, and one that was cut says so; or the field is refused.",
        honouring.probe_max_output_tokens,
        "field:max_output_tokens",
    ),
    _field(
        "metadata",
        f"{_API}: metadata",
        "`metadata` stands in the response and in the stored one, or is refused.",
        honouring.probe_metadata,
        "field:metadata",
    ),
    _field(
        "tool-choice-none",
        f"{_API}: tool_choice",
        "With tool_choice none no tool is called, or the field is refused.",
        honouring.probe_tool_choice_none,
        "choice:none",
    ),
    _field(
        "tool-choice-required",
        f"{_API}: tool_choice",
        "With tool_choice required a tool is called, or the field is refused.",
        honouring.probe_tool_choice_required,
        "choice:required",
        "field:tool_choice",
    ),
    _field(
        "json-schema",
        f"{_API}: text.format",
        "With a schema in `text.format` a completed answer fits it, or the field is refused.",
        honouring.probe_json_schema,
        "field:text",
        "field:text.format.schema",
    ),
    *open_responses.REQUIREMENTS,
    *fields.REQUIREMENTS,
    *tools.REQUIREMENTS,
    *items.REQUIREMENTS,
    *errors.REQUIREMENTS,
    *serving.REQUIREMENTS,
    *conversing.REQUIREMENTS,
    *backgrounding.REQUIREMENTS,
    *events.REQUIREMENTS,
    *sockets.REQUIREMENTS,
    *compaction.REQUIREMENTS,
    *compacting.REQUIREMENTS,
    *context_managing.REQUIREMENTS,
    Requirement(
        "isolation.other-key",
        "isolation",
        "ours: tenants",
        "With another key a response can be neither read, listed, continued nor deleted, nor told from an unknown one.",
        isolating.probe_other_key,
        ("endpoint:GET /responses/{id}", "endpoint:DELETE /responses/{id}"),
    ),
    Requirement(
        "isolation.conversations",
        "isolation",
        "ours: tenants",
        "With another key a conversation can be neither read, changed nor used, nor told from an unknown one.",
        isolating.probe_conversations,
        ("endpoint:GET /conversations/{id}", "error:conversation_not_found"),
    ),
    # Last, because a server that does not come back can be asked nothing more.
    Requirement(
        "restart.kept",
        "restart",
        "ours: nothing is lost silently",
        "A stored response can be retrieved and continued after the server was restarted.",
        restarting.probe_kept,
        ("field:store",),
    ),
)

_AREAS = list(dict.fromkeys(requirement.area for requirement in _ROWS))
#: Every requirement, area by area.
MANIFEST: tuple[Requirement, ...] = tuple(sorted(_ROWS, key=lambda row: _AREAS.index(row.area)))


def select_requirements(only: Iterable[str] = ()) -> list[Requirement]:
    """The requirements whose id or area is named, all where nothing is; KeyError names what is unknown."""
    names = list(only)
    for name in names:
        if not any(name in (requirement.id, requirement.area) for requirement in MANIFEST):
            raise KeyError(name)
    return [item for item in MANIFEST if not names or item.id in names or item.area in names]
