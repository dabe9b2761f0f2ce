"""`POST /v1/responses` as data: the request, its defaults, and every check that needs no state.

Knows nothing of models, stores or of what this server carries out. Invariant: for any bytes,
`decode_create_request` returns a request or raises `RequestError`, and the first failing check of the API's
order is the one that is reported.
"""

from collections.abc import Callable, Collection
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antiphon.protocol import checks
from antiphon.protocol.content import TEXT_MAX_LENGTH
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, decode_items, make_user_message
from antiphon.protocol.tools import (
    Tool,
    ToolChoice,
    check_tool_choice,
    check_tool_keys,
    decode_tool_choice,
    decode_tools,
)

MIN_OUTPUT_TOKENS: Final = 16
#: Model servers keep token counts in 32 bits.
MAX_OUTPUT_TOKENS: Final = 2_147_483_647
MIN_COMPACT_THRESHOLD_TOKENS: Final = 1000
MAX_METADATA_PAIRS: Final = 16

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
ServiceTier: TypeAlias = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Includable: TypeAlias = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=MAX_METADATA_PAIRS),
]


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """An object inside a request that knows all its keys."""


class TextFormat(msgspec.Struct, gc=False):
    """The form that the answer's text must have; name, schema, description, strict for `json_schema` only."""

    type: Literal["text", "json_schema", "json_object"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, gc=False):
    """How the answer's text should be."""

    format: TextFormat = msgspec.field(default_factory=TextFormat)
    verbosity: str | None = None


class ReasoningConfig(Options, kw_only=True):
    """How the model should reason."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard", "pro"] | None = None


class StreamOptions(Options, kw_only=True):
    """How the stream should be."""

    include_obfuscation: bool | None = None


class BackgroundOptions(Options, kw_only=True):
    """How a background response should run."""

    completion_window: Literal["soonest", "2h", "8h"] | None = None
    continuation_id: str | None = None


class PromptTemplate(Options, kw_only=True):
    """A stored prompt and the values of its variables."""

    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class PromptCacheOptions(Options, kw_only=True):
    """Hints for the prompt cache."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class ModerationRule(Options, kw_only=True):
    """What moderation does with one direction."""

    mode: Literal["score", "block"]


class ModerationPolicy(Options, kw_only=True):
    """What moderation does with input and output."""

    input: ModerationRule | None = None
    output: ModerationRule | None = None


class ModerationConfig(Options, kw_only=True):
    """Moderation of a response."""

    model: str
    policy: ModerationPolicy | None = None


class ImageConfig(Options, kw_only=True):
    """How images are treated."""

    context_compression: Literal["auto", "enabled", "disabled"] | None = None


class AccessPrograms(Options, kw_only=True):
    """Access programs of the vendor's."""

    cyber: Literal["standard", "daybreak_blue", "daybreak_red"] | None = None


class AntiphonOptions(Options, kw_only=True):
    """Our own request key: marks on tool results by call id, and the method of a compaction."""

    marks: dict[str, Literal["uneventful", "superseded", "keep"]] | None = None
    method: Literal["auto", "elide", "summary", "extract"] | None = None


class ConversationReference(Options, kw_only=True):
    """A conversation, by id."""

    id: str


class _PlainText(Options, kw_only=True, tag_field="type", tag="text"):
    """Any text."""


class _JsonObject(Options, kw_only=True, tag_field="type", tag="json_object"):
    """Any JSON object."""


class _JsonSchema(Options, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]
    schema: Any
    description: str | None = None
    strict: bool | None = None


class _SentText(Options, kw_only=True):
    """`text` as it is sent."""

    format: _PlainText | _JsonObject | _JsonSchema | None = None
    verbosity: Verbosity | None = None


class _SentCompaction(Options, kw_only=True):
    """One entry of `context_management` as it is sent."""

    type: str
    compact_threshold: Annotated[int, Meta(ge=MIN_COMPACT_THRESHOLD_TOKENS)] | None = None


class CreateRequest(msgspec.Struct, kw_only=True):
    """One request for a response. What was absent or null has its default; None where there is none."""

    model: str = ""
    input: list[Item] = []
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | None = None
    store: bool = True
    store_given: bool = False
    #: False: the model is not asked; the response is there to be continued.
    generate: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool = False
    background_options: BackgroundOptions | None = None
    include: tuple[str, ...] = ()
    tools: list[Tool] = []
    tool_choice: ToolChoice = "auto"
    tool_choice_given: bool = False
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig = msgspec.field(default_factory=TextConfig)
    truncation: str = "disabled"
    context_management: list[dict[str, Any]] | None = None
    metadata: dict[str, str] = {}
    prompt: PromptTemplate | None = None
    moderation: ModerationConfig | None = None
    image: ImageConfig | None = None
    access_programs: AccessPrograms | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    client_metadata: dict[str, Any] | None = None
    antiphon: dict[str, Any] | None = None


# Decoders of single fields


def decode_input(raw: msgspec.Raw) -> list[Item]:
    """`input`: a string is one user message, `""` is no item."""
    first = bytes(raw)[:1]
    if first == b'"':
        text = _decode_with(raw, Annotated[str, Meta(max_length=TEXT_MAX_LENGTH)], "input")
        return [make_user_message(text)] if text else []
    if first == b"[":
        return decode_items(raw, "input")
    raise checks.invalid_type("input", "a string", msgspec.json.decode(raw))


def decode_text_config(raw: msgspec.Raw) -> TextConfig:
    """`text`: the format in one Struct, whatever its type."""
    sent: _SentText = _decode_with(raw, _SentText, "text")
    if isinstance(sent.format, _JsonSchema):
        if not isinstance(sent.format.schema, dict):
            raise RequestError(
                f"Invalid schema for response_format '{sent.format.name}': a JSON Schema is an object, "
                f"but got {checks.name_kind(sent.format.schema)} instead.",
                param="text.format.schema",
                code="invalid_json_schema",
            )
        chosen = TextFormat(
            "json_schema", sent.format.name, sent.format.schema, sent.format.description, sent.format.strict
        )
    elif isinstance(sent.format, _JsonObject):
        chosen = TextFormat("json_object")
    else:
        chosen = TextFormat()
    return TextConfig(chosen, sent.verbosity)


def decode_conversation(raw: msgspec.Raw) -> str:
    """`conversation`: an id, or an object that holds one."""
    found: str | ConversationReference = _decode_with(raw, str | ConversationReference, "conversation")
    return found if isinstance(found, str) else found.id


def decode_context_management(raw: msgspec.Raw) -> list[dict[str, Any]]:
    """`context_management`: at least one entry, each of type `compaction`."""
    where = "context_management"
    sent: list[_SentCompaction] = _decode_with(raw, list[_SentCompaction], where)
    checks.check_length(sent, 1, None, where)
    for entry in sent:
        if entry.type != "compaction":
            raise RequestError(f"Unsupported context_management type: '{entry.type}'.", param=where)
    entries: list[dict[str, Any]] = msgspec.to_builtins(sent)
    return entries


def decode_antiphon(raw: msgspec.Raw) -> dict[str, Any]:
    """`antiphon`: only the keys that we know; left-out ones stay out."""
    options: dict[str, Any] = msgspec.to_builtins(_decode_with(raw, AntiphonOptions, "antiphon"))
    return options


def _decode_with(raw: msgspec.Raw, kind: Any, where: str) -> Any:
    try:
        return _get_decoder(kind)(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        checks.refuse(raw, kind, where, error)


def _get_decoder(kind: Any) -> Callable[[msgspec.Raw], Any]:
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind).decode
    return decoder


_DECODERS: dict[Any, Callable[[msgspec.Raw], Any]] = {}


class _Rule(msgspec.Struct, frozen=True):
    """How one field is read: along a type, or by a function of its own; `shape` finds unknown keys in it."""

    shape: Any
    read: Callable[[msgspec.Raw], Any] | None = None


#: Every field, in the order in which the API checks them.
FIELDS: Final[dict[str, _Rule]] = {
    "model": _Rule(str),
    "input": _Rule(Any, decode_input),
    "previous_response_id": _Rule(str),
    "conversation": _Rule(str | ConversationReference, decode_conversation),
    "prompt": _Rule(PromptTemplate),
    "moderation": _Rule(ModerationConfig),
    "include": _Rule(tuple[Includable, ...]),
    "tools": _Rule(Any, decode_tools),
    "tool_choice": _Rule(ToolChoice, decode_tool_choice),
    "metadata": _Rule(Metadata),
    "text": _Rule(_SentText, decode_text_config),
    "temperature": _Rule(Annotated[float, Meta(ge=0, le=2)]),
    "top_p": _Rule(Annotated[float, Meta(ge=0, le=1)]),
    "presence_penalty": _Rule(float),
    "frequency_penalty": _Rule(float),
    "parallel_tool_calls": _Rule(bool),
    "stream": _Rule(bool),
    "stream_options": _Rule(StreamOptions),
    "background": _Rule(bool),
    "background_options": _Rule(BackgroundOptions),
    "max_output_tokens": _Rule(Annotated[int, Meta(ge=MIN_OUTPUT_TOKENS, le=MAX_OUTPUT_TOKENS)]),
    "max_tool_calls": _Rule(Annotated[int, Meta(ge=1)]),
    "reasoning": _Rule(ReasoningConfig),
    "user": _Rule(str),
    "safety_identifier": _Rule(Annotated[str, Meta(max_length=128)]),
    "prompt_cache_options": _Rule(PromptCacheOptions),
    "prompt_cache_key": _Rule(Annotated[str, Meta(max_length=64)]),
    "prompt_cache_retention": _Rule(Literal["in_memory", "24h"]),
    "truncation": _Rule(Literal["auto", "disabled"]),
    "instructions": _Rule(Annotated[str, Meta(max_length=TEXT_MAX_LENGTH)]),
    "store": _Rule(bool),
    "service_tier": _Rule(ServiceTier),
    "top_logprobs": _Rule(Annotated[int, Meta(ge=0, le=20)]),
    "context_management": _Rule(list[_SentCompaction], decode_context_management),
    "image": _Rule(ImageConfig),
    "access_programs": _Rule(AccessPrograms),
    "client_metadata": _Rule(dict[str, Any]),
    "antiphon": _Rule(AntiphonOptions, decode_antiphon),
}
#: Parameters of the Chat Completions API, and where the Responses API has them.
MOVED: Final[dict[str, str]] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_NULL: Final = b"null"
_CONTAINER_STARTS: Final = b"[{"
_ORDER: Final = {name: place for place, name in enumerate(FIELDS)}
_READERS: Final[dict[str, Callable[[msgspec.Raw], Any]]] = {
    name: rule.read or msgspec.json.Decoder(rule.shape).decode for name, rule in FIELDS.items()
}


def decode_create_request(body: bytes) -> CreateRequest:
    """Decode and check the body of `POST /v1/responses`.

    Raises `RequestError` for the first of: unreadable JSON, no model, no input, an unknown key, a field of
    the wrong type or value (in the order of `FIELDS`), fields that exclude one another.
    """
    return read_create_request(checks.decode_body(body))


def read_create_request(raws: dict[str, msgspec.Raw]) -> CreateRequest:
    """The same for a body whose values are known already."""
    _check_present(raws)
    check_known(raws, FIELDS)
    request = CreateRequest(**read_fields(raws))
    request.tool_choice_given = "tool_choice" in raws and bytes(raws["tool_choice"]) != _NULL
    request.store_given = "store" in raws and bytes(raws["store"]) != _NULL
    check_together(request)
    return request


def read_fields(raws: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """The values of fields of `FIELDS`, null ones left out; raises `RequestError` for the API's first failure."""
    values: dict[str, Any] = {}
    try:
        # Names in check order, so that the first failure is the API's first.
        for name in sorted(raws, key=_ORDER.__getitem__):
            raw = raws[name]
            if name == "input":
                values[name] = _read_field(name, raw)
            elif (sent := bytes(raw)) != _NULL:
                if sent[0] in _CONTAINER_STARTS:
                    checks.check_value(sent, name)
                values[name] = _read_field(name, raw)
    except RequestError:
        # Unknown keys inside fields come before any field's own checks.
        _check_nested_keys(raws)
        raise
    return values


def _read_field(name: str, raw: msgspec.Raw) -> Any:
    try:
        return _READERS[name](raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        checks.refuse(raw, FIELDS[name].shape, name, error)


def _check_present(raws: dict[str, msgspec.Raw]) -> None:
    def is_given(name: str) -> bool:
        return name in raws and bytes(raws[name]) != _NULL

    if not is_given("model") and not is_given("prompt"):
        raise checks.missing_parameter("model")
    if "input" in raws:
        return
    # A body made for Chat Completions is told where its messages belong, not that it has no input.
    if "messages" in raws:
        raise _moved_parameter("messages")
    if not any(map(is_given, ("previous_response_id", "prompt", "conversation"))):
        raise checks.missing_parameter("input")


def check_known(raws: dict[str, msgspec.Raw], known: Collection[str]) -> None:
    """Raise for the first field that a route does not know; one of another API is told its place, if there is one."""
    for name in raws:
        if name in known:
            continue
        if name in MOVED and MOVED[name].partition(".")[0] in known:
            raise _moved_parameter(name)
        raise checks.unknown_parameter("", name, known, raws)


def _moved_parameter(name: str) -> RequestError:
    message = f"Unsupported parameter: '{name}'. In the Responses API, this parameter has moved to "
    message += f"'{MOVED[name]}'. Try again with the new parameter."
    return RequestError(message, param=name, code="unsupported_parameter")


def _check_nested_keys(raws: dict[str, msgspec.Raw]) -> None:
    for name, rule in FIELDS.items():
        if name not in raws or (name != "tools" and rule.shape is Any):
            continue
        checks.check_value(raws[name], name)
        value = msgspec.json.decode(raws[name])
        if name == "tools":
            check_tool_keys(value)
        elif value is not None:
            checks.check_keys(value, checks.get_shape(rule.shape), name)


def check_together(request: CreateRequest) -> None:
    """Raise for fields that do not go together."""
    if request.tool_choice_given:
        check_tool_choice(request.tool_choice, request.tools)
    if request.previous_response_id is not None and request.conversation is not None:
        raise RequestError(
            "Mutually exclusive parameters: ''. Ensure you are only providing one of: "
            "'previous_response_id' or 'conversation'.",
            code="mutually_exclusive_parameters",
        )


def check_not_empty(request: CreateRequest) -> None:
    """Raise when there is nothing to answer: no input, and no context that could stand in for it."""
    if request.input or request.previous_response_id or request.conversation or request.prompt:
        return
    raise RequestError(
        "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided.",
        code="missing_required_parameter",
    )


def echo_text(config: TextConfig) -> dict[str, Any]:
    """`text` as the response shows it: the format with its defaults, and the verbosity."""
    chosen = config.format
    form: dict[str, Any] = {"type": chosen.type}
    if chosen.type == "json_schema":
        form |= {"name": chosen.name, "description": chosen.description}
        form |= {"schema": chosen.schema, "strict": bool(chosen.strict)}
    return {"format": form, "verbosity": config.verbosity or "medium"}
