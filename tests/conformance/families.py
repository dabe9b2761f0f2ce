"""What the members of each family of doubles must be found guilty of: a rule, and the exceptions from it.

The rule: a member named after a subject breaks the requirement of that subject, and nothing else of its area.
"""

#: Family -> the areas, or requirements, that it is tried with.
AREAS: dict[str, tuple[str, ...]] = {
    "ignores-field-": ("fields",),
    "hides-field-": ("fields",),
    "ignores-tool-": ("tools",),
    "ignores-choice-": ("choices",),
    "ignores-include-": ("includes",),
    "drops-item-": ("items", "errors.lone_reasoning"),
    "drops-part-": ("parts",),
    "garbles-event-": ("events",),
    "allows-": ("errors",),
    "compaction-": (
        "compaction",
        "open-responses.compact-response",
        "open-responses.compact-missing-model",
        "websocket.compact-new-chain",
        "endpoints.compact",
    ),
}
_FORMAT = {f"fields.text.format.{name}" for name in ("type", "name", "schema", "description", "strict")}
_MODERATION = {f"fields.moderation.{name}" for name in ("model", "policy.input", "policy.output")}
_PROMPT = {f"fields.prompt.{name}" for name in ("id", "version", "variables")}
_COMPACTION = {f"fields.context_management.{name}" for name in ("type", "compact_threshold")}
#: They are told together with a threshold.
_OURS = {"fields.antiphon.marks", "fields.antiphon.method"}
_PARTS = {
    "parts.input_text",
    *(f"parts.input_image{name}" for name in ("", ".detail", ".file_id")),
    *(f"parts.input_file{name}" for name in ("", ".file_id", ".file_url")),
    "parts.input_audio",
    "parts.input_video",
}
_ANNOTATED = {
    f"parts.{name}" for name in ("file_citation", "url_citation", "container_file_citation", "file_path")
}
_CALLS = {"items.function_call", "items.function_call_output"}

#: Member -> what it breaks, where the rule does not say it.
FAILING: dict[str, set[str]] = {
    # Nothing in an answer tells of these.
    **{
        f"ignores-field-{name}": set()
        for name in (
            "background_options.completion_window",
            "background_options.continuation_id",
            # Without its type it is refused by its name.
            "context_management.type",
            "prompt_cache_options.prewarm",
            "client_metadata",
            "generate",
            "stream_id",
            # The response says which tier it was, whatever was asked for.
            "service_tier",
            # Refused with the include that goes with it.
            "top_logprobs",
        )
    },
    "ignores-field-context_management.compact_threshold": _COMPACTION,
    "ignores-field-text.format.type": {"fields.json-schema", "fields.json-object", "fields.text.format.type"},
    "ignores-field-text.format.schema": {"fields.json-schema", "fields.text.format.schema"},
    "ignores-field-prompt.id": _PROMPT,
    "ignores-field-prompt.version": _PROMPT - {"fields.prompt.id"},
    "ignores-field-prompt.variables": _PROMPT - {"fields.prompt.id"},
    "ignores-field-moderation.model": _MODERATION,
    "hides-field-temperature": set(),
    "hides-field-text.format.type": {*_FORMAT, "fields.json-schema", "fields.json-object"},
    "hides-field-text.format.name": {*_FORMAT, "fields.json-schema"},
    "hides-field-text.format.schema": {*_FORMAT, "fields.json-schema"},
    "hides-field-text.format.description": _FORMAT,
    "hides-field-text.format.strict": {*_FORMAT, "fields.json-schema"},
    "hides-field-context_management.type": _COMPACTION | _OURS,
    "hides-field-context_management.compact_threshold": _COMPACTION | _OURS,
    "hides-field-prompt.id": _PROMPT,
    "hides-field-prompt.version": _PROMPT - {"fields.prompt.id"},
    "hides-field-prompt.variables": _PROMPT - {"fields.prompt.id"},
    "hides-field-moderation.model": _MODERATION,
    # What is deferred is found by a tool search, and goes with it.
    "ignores-tool-tool_search": {
        "tools.tool_search",
        *(f"tools.tool_search.{name}" for name in ("execution", "description", "parameters")),
        "tools.custom.defer_loading",
        "tools.mcp.defer_loading",
    },
    # Two choices are other areas' requirements.
    "ignores-choice-none": set(),
    "ignores-choice-required": set(),
    # Reasoning is refused before anything could be included of it.
    "ignores-include-reasoning.encrypted_content": set(),
    "drops-item-function_call": _CALLS,
    "drops-item-function_call_output": _CALLS,
    "drops-item-reasoning": {"items.reasoning", "errors.lone_reasoning"},
    # A part goes with its members.
    "drops-part-input_text": {*_PARTS, "parts.input_text.prompt_cache_breakpoint"},
    "drops-part-input_image": {part for part in _PARTS if part.startswith("parts.input_image")},
    "drops-part-input_file": {part for part in _PARTS if part.startswith("parts.input_file")},
    "drops-part-output_text": {"parts.output_text", "parts.output_text.logprobs", *_ANNOTATED},
    # Requirements that were there before the families have names of their own.
    "allows-missing_input": {"errors.missing-input"},
    "allows-empty_input": {"errors.empty-input"},
    "allows-invalid_value": {"errors.bad-enum"},
    "allows-unknown_parameter": {
        "errors.unknown-parameter",
        "errors.did_you_mean",
        "errors.prompt_not_found",
    },
}
UNDECIDED: dict[str, set[str]] = {
    **{
        f"ignores-field-{name}": {f"fields.{name}"}
        for name in (
            "background_options.completion_window",
            "background_options.continuation_id",
            "generate",
            "stream_id",
        )
    },
    # Where an answer begins is not seen over a WebSocket either.
    "garbles-event-response.created": {"events.response.steer.failed"},
}


#: Of the faults of compaction: what they break beside the requirement that they are named after, or instead of it.
_COMPACT = {"compact-shape", "compact-continues", "compact-by-id", "compact-stateless", "compact-rejects"}
_SUITE = {f"open-responses.compact-{name}" for name in ("response", "missing-model")}
FAILING |= {
    "compaction-trigger": {
        f"compaction.{name}" for name in ("trigger", "trigger-stream", "trigger-websocket", "again")
    },
    "compaction-trigger-by-id": {"compaction.trigger-by-id", "compaction.trigger-websocket"},
    "compaction-continues": {"compaction.continues", "compaction.trigger-by-id"},
    "compaction-store-false": {"compaction.store-false", "compaction.trigger-websocket"},
    "compaction-supersedes": {"compaction.supersedes", "compaction.context-drops"},
    "compaction-broken-seal": {"compaction.broken-seal", "compaction.other-key"},
    "compaction-compact-continues": {"compaction.compact-continues", "compaction.compact-by-id"},
    "compaction-compact-response": {"compaction.compact-shape", "open-responses.compact-response"},
    "compaction-compact-missing-model": {"open-responses.compact-missing-model"},
    "compaction-compact-new-chain": {"websocket.compact-new-chain"},
    "compaction-compact": {
        "endpoints.compact",
        *_SUITE,
        *(f"compaction.{name}" for name in (*_COMPACT, "compact-nothing")),
    },
}


def is_guilty(family: str, name: str, requirement_id: str) -> bool:
    """Whether the member of a family must break this requirement of its areas."""
    member = f"{family}{name}"
    if member in FAILING:
        return requirement_id in FAILING[member]
    own = f"{AREAS[family][0]}.{name}"
    # A tool that is left out takes its settings with it.
    return requirement_id == own or (family == "ignores-tool-" and requirement_id.startswith(f"{own}."))
