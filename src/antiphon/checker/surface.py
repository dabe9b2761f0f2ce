"""The Responses API's surface as data: every endpoint, field, tool, item, part, event and error has a subject.

It knows no server and no probe; requirements name the subjects that they cover. Invariant: a subject stands
here once, under `kind:name`, and what the API does not have does not stand here, but for what is marked as ours.
"""

from collections.abc import Mapping
from typing import Final

#: Kind -> what a page calls its subjects.
KINDS: Final[dict[str, str]] = {
    "endpoint": "Endpoints",
    "field": "Request fields",
    "tool": "Tool types",
    "choice": "Tool choices",
    "include": "Values of include",
    "item": "Input items",
    "part": "Content parts and annotations",
    "output": "Output items",
    "event": "Stream events",
    "frame": "WebSocket frames",
    "error": "Errors",
}

_ENDPOINTS = """
POST /responses|GET /responses/{id}|GET /responses/{id}?stream=true|DELETE /responses/{id}
POST /responses/{id}/cancel|GET /responses/{id}/input_items|POST /responses/compact|POST /responses/input_tokens
WebSocket /responses|POST /conversations|GET /conversations/{id}|POST /conversations/{id}|DELETE /conversations/{id}
POST /conversations/{id}/items|GET /conversations/{id}/items|GET /conversations/{id}/items/{item_id}
DELETE /conversations/{id}/items/{item_id}|GET /models|GET /models/{model}|DELETE /models/{model}
POST /chat/completions|GET /responses/{id}/window|GET /items|GET /items/{item_id}|GET /openapi.json|GET /health
GET /ready
"""
#: Endpoints that are not the API's but ours; another server has no need of them.
OURS: Final = frozenset(
    {
        "endpoint:GET /responses/{id}/window",
        "endpoint:GET /items",
        "endpoint:GET /items/{item_id}",
        "endpoint:GET /openapi.json",
        "endpoint:GET /health",
        "endpoint:GET /ready",
        "field:antiphon.marks",
        "field:antiphon.method",
    }
)
#: Fields of a tool stand under its type: `tools.function.strict`.
TOOL_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "function": (
        *("name", "parameters", "strict", "description", "async", "defer_loading"),
        *("allowed_callers", "output_schema"),
    ),
    "custom": (
        *("name", "description", "format.type", "format.syntax", "format.definition"),
        *("async", "defer_loading", "allowed_callers"),
    ),
    "namespace": ("name", "description", "tools"),
    "tool_search": ("execution", "description", "parameters"),
    "programmatic_tool_calling": (),
    "file_search": ("vector_store_ids", "max_num_results", "filters", "ranking_options"),
    "web_search": ("filters", "search_context_size", "user_location", "external_web_access"),
    "web_search_2025_08_26": (),
    "web_search_preview": ("search_context_size", "user_location", "search_content_types"),
    "web_search_preview_2025_03_11": (),
    "computer": (),
    "computer_use_preview": ("display_width", "display_height", "environment"),
    "mcp": (
        *(
            "server_label",
            "server_url",
            "connector_id",
            "tunnel_id",
            "allowed_tools",
            "authorization",
            "headers",
        ),
        *("require_approval", "server_description", "defer_loading", "allowed_callers"),
    ),
    "code_interpreter": ("container", "allowed_callers"),
    "image_generation": (
        *("action", "background", "complexity", "frame_count", "frame_duration_ms", "input_fidelity"),
        *("input_image_mask", "model", "moderation", "output_compression", "output_format", "partial_images"),
        *("quality", "size", "svg"),
    ),
    "local_shell": (),
    "shell": ("environment", "allowed_callers"),
    "apply_patch": ("allowed_callers",),
}
_FIELDS = """
model|input|instructions|previous_response_id|conversation|conversation.id|store|stream|stream_options
stream_options.include_obfuscation|background|background_options.completion_window|background_options.continuation_id
include|tools|tool_choice|parallel_tool_calls|max_tool_calls|max_output_tokens|temperature|top_p|top_logprobs
presence_penalty|frequency_penalty|reasoning|reasoning.effort|reasoning.summary|reasoning.generate_summary
reasoning.context|reasoning.mode|text|text.format.type|text.format.name|text.format.schema|text.format.description
text.format.strict|text.verbosity|truncation|context_management|context_management.type
context_management.compact_threshold|metadata|prompt.id|prompt.version|prompt.variables|prompt_cache_key
prompt_cache_retention|prompt_cache_options.mode|prompt_cache_options.ttl|prompt_cache_options.prewarm
prompt_cache_options.comparison_response_id|service_tier|safety_identifier|user|moderation.model
moderation.policy.input|moderation.policy.output|image.context_compression|access_programs.cyber|client_metadata
generate|stream_id|antiphon.marks|antiphon.method
"""
_CHOICES = """
none|auto|required|allowed_tools|function|custom|mcp|file_search|web_search_preview|web_search_preview_2025_03_11
computer|computer_use|computer_use_preview|image_generation|code_interpreter|apply_patch|shell
programmatic_tool_calling
"""
_INCLUDES = """
file_search_call.results|web_search_call.results|web_search_call.action.sources|message.input_image.image_url
computer_call_output.output.image_url|code_interpreter_call.outputs|reasoning.encrypted_content
message.output_text.logprobs
"""
_ITEMS = """
message|item_reference|function_call|function_call_output|custom_tool_call|custom_tool_call_output|reasoning
compaction|compaction_summary|compaction_trigger|configuration_update|additional_tools|tool_search_call
tool_search_output|program|program_output|file_search_call|web_search_call|computer_call|computer_call_output
code_interpreter_call|image_generation_call|local_shell_call|local_shell_call_output|shell_call|shell_call_output
apply_patch_call|apply_patch_call_output|mcp_list_tools|mcp_call|mcp_approval_request|mcp_approval_response
agent_message
"""
_PARTS = """
input_text|input_text.prompt_cache_breakpoint|input_image|input_image.file_id|input_image.detail|input_file
input_file.file_id|input_file.file_url|input_audio|input_video|output_text|refusal|reasoning_text|summary_text
computer_screenshot|file_citation|url_citation|container_file_citation|file_path|output_text.logprobs
"""
_OUTPUTS = """
message|function_call|custom_tool_call|reasoning|compaction|additional_tools|tool_search_call|tool_search_output
program|program_output|file_search_call|web_search_call|computer_call|code_interpreter_call|image_generation_call
local_shell_call|shell_call|shell_call_output|apply_patch_call|mcp_list_tools|mcp_call|mcp_approval_request
"""
#: What is spoken over a WebSocket beside the events of a stream.
_FRAMES = "response.create|response.steer|error"
#: Event -> its members beside type and sequence_number; ? marks one that may be left out.
EVENT_FIELDS: Final[dict[str, str]] = {
    "error": "error",
    "response.audio.delta": "delta",
    "response.audio.done": "",
    "response.audio.transcript.delta": "delta",
    "response.audio.transcript.done": "",
    "response.code_interpreter_call.completed": "item_id output_index",
    "response.code_interpreter_call.in_progress": "item_id output_index",
    "response.code_interpreter_call.interpreting": "item_id output_index",
    "response.code_interpreter_call_code.delta": "delta item_id output_index",
    "response.code_interpreter_call_code.done": "code item_id output_index",
    "response.compaction.compacting": "item_id output_index",
    "response.completed": "response",
    "response.content_part.added": "content_index item_id output_index part",
    "response.content_part.done": "content_index item_id output_index part",
    "response.created": "response",
    "response.custom_tool_call_input.delta": "delta item_id output_index",
    "response.custom_tool_call_input.done": "input item_id output_index",
    "response.failed": "response",
    "response.file_search_call.completed": "item_id output_index",
    "response.file_search_call.in_progress": "item_id output_index",
    "response.file_search_call.searching": "item_id output_index",
    "response.function_call_arguments.delta": "delta item_id output_index",
    "response.function_call_arguments.done": "arguments item_id output_index",
    "response.image_generation_call.completed": "item_id output_index",
    "response.image_generation_call.generating": "item_id output_index",
    "response.image_generation_call.in_progress": "item_id output_index",
    "response.image_generation_call.partial_image": "item_id output_index partial_image_b64 partial_image_index",
    "response.in_progress": "response",
    "response.incomplete": "response",
    "response.mcp_call.completed": "item_id output_index",
    "response.mcp_call.failed": "item_id output_index",
    "response.mcp_call.in_progress": "item_id output_index",
    "response.mcp_call_arguments.delta": "delta item_id output_index",
    "response.mcp_call_arguments.done": "arguments item_id output_index",
    "response.mcp_list_tools.completed": "item_id output_index",
    "response.mcp_list_tools.failed": "item_id output_index",
    "response.mcp_list_tools.in_progress": "item_id output_index",
    "response.output_item.added": "item output_index",
    "response.output_item.done": "item output_index",
    "response.output_text.annotation.added": "annotation annotation_index content_index item_id output_index",
    "response.output_text.delta": "content_index delta item_id logprobs output_index",
    "response.output_text.done": "content_index item_id logprobs output_index text",
    "response.queued": "response",
    "response.reasoning_summary_part.added": "item_id output_index part summary_index",
    "response.reasoning_summary_part.done": "item_id output_index part summary_index",
    "response.reasoning_summary_text.delta": "delta item_id output_index summary_index",
    "response.reasoning_summary_text.done": "item_id output_index summary_index text",
    "response.reasoning_text.delta": "content_index delta item_id output_index",
    "response.reasoning_text.done": "content_index item_id output_index text",
    "response.refusal.delta": "content_index delta item_id output_index",
    "response.refusal.done": "content_index item_id output_index refusal",
    "response.shell_call_command.added": "command command_index output_index",
    "response.shell_call_command.delta": "command_index delta output_index",
    "response.shell_call_command.done": "command command_index output_index",
    "response.shell_call_output_content.delta": "command_index delta item_id output_index",
    "response.shell_call_output_content.done": "command_index item_id output output_index",
    "response.steer": "input previous_response_id",
    "response.steer.accepted": "steer",
    "response.steer.failed": "error steer",
    "response.steer.pending": "reason required_input steer",
    "response.web_search_call.completed": "item_id output_index",
    "response.web_search_call.in_progress": "item_id output_index",
    "response.web_search_call.searching": "item_id output_index",
}
#: What an error case is about, in a few words; the name is its code where it has one.
ERRORS: Final[dict[str, str]] = {
    "error_object": "every error is an object under `error` with message, type, param and code",
    "invalid_json": "a body that is no JSON",
    "missing_model": "no model",
    "missing_input": "no input and nothing to continue",
    "empty_input": "an empty input and nothing to continue",
    "null_input": "a null input",
    "invalid_type": "a value of the wrong type",
    "unknown_parameter": "an unknown key at the top",
    "unknown_nested_parameter": "an unknown key inside a field",
    "did_you_mean": "a misspelt key is told the one that was meant",
    "unsupported_parameter": "`messages` is told that it is `input` here",
    "invalid_value": "a value outside its list",
    "invalid_role": "an unknown role",
    "invalid_item_type": "an unknown type of item",
    "invalid_part": "a content part that its role cannot hold",
    "invalid_item_id": "an id whose prefix is another type's",
    "invalid_include": "an unknown value of include",
    "integer_below_min_value": "a number under its minimum",
    "integer_above_max_value": "a number over its maximum",
    "decimal_above_max_value": "a decimal over its maximum",
    "object_above_max_properties": "more than 16 pairs of metadata",
    "string_above_max_length": "a value of metadata that is too long",
    "property_name_above_max_length": "a key of metadata that is too long",
    "empty_array": "an empty list of items to add",
    "array_above_max_length": "more than 20 items to add",
    "missing_required_parameter": "no items to add",
    "missing_tool_name": "a tool in the Chat Completions shape",
    "invalid_function_parameters": "a function whose parameters are no object's schema",
    "invalid_json_schema": "a schema of text.format that is none",
    "unknown_tool_choice": "a choice of a tool that is not declared",
    "model_not_found": "an unknown model",
    "previous_response_not_found": "an unknown previous_response_id",
    "response_not_found": "GET, DELETE, cancel and input_items of an unknown response",
    "conversation_not_found": "an unknown conversation, on its own routes and in a request",
    "prompt_not_found": "an unknown prompt template",
    "mutually_exclusive_parameters": "previous_response_id and conversation together",
    "item_not_found": "a reference to an unknown item",
    "conversation_locked": "two responses in one conversation at once",
    "cursor_not_found": "`after` names an unknown item",
    "invalid_limit": "a limit outside 1 to 100, an order that is none",
    "item_already_in_conversation": "an item that stands in the conversation already",
    "call_without_output": "a function call that nobody answered",
    "output_without_call": "the output of a call that nobody made",
    "lone_reasoning": "a reasoning item with nothing after it",
    "duplicate_item": "one id twice in an input",
    "context_length_exceeded": "an input that does not fit the window",
    "invalid_encrypted_content": "sealed content that cannot be opened",
    "cancel_synchronous": "cancelling a response that does not run in the background",
    "stream_not_resumable": "streaming a stored response that was not streamed from the background",
    "invalid_stream_id": "a lane of a WebSocket whose name is none",
    "websocket_stream_limit_reached": "more lanes on a WebSocket than it may have",
    "steering_not_supported": "response.steer where nothing can be steered",
    "unknown_url": "a path that there is not",
    "method_not_allowed": "a method that a path does not have",
}


def _split(kind: str, text: str) -> list[str]:
    return [f"{kind}:{name}" for line in text.split("\n") for name in line.split("|") if name]


#: Every subject, in the order of the pages.
SURFACE: Final[tuple[str, ...]] = (
    *_split("endpoint", _ENDPOINTS),
    *_split("field", _FIELDS),
    *(f"field:tools.{tool}.{name}" for tool, names in TOOL_FIELDS.items() for name in names),
    *(f"tool:{name}" for name in TOOL_FIELDS),
    *_split("choice", _CHOICES),
    *_split("include", _INCLUDES),
    *_split("item", _ITEMS),
    *_split("part", _PARTS),
    *_split("output", _OUTPUTS),
    *(f"event:{name}" for name in EVENT_FIELDS),
    *_split("frame", _FRAMES),
    *(f"error:{name}" for name in ERRORS),
)


def group_subjects() -> Mapping[str, list[str]]:
    """Kind -> the names of its subjects, in order."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for subject in SURFACE:
        kind, _, name = subject.partition(":")
        found[kind].append(name)
    return found
