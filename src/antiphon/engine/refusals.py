"""What this server does not carry out yet, refused by name: a table, and the walk over it.

It knows the request alone. Invariant: a field of the API is either carried out or stands here; nothing
is accepted and forgotten.
"""

from collections.abc import Callable
from typing import Any

from antiphon.context import Profile
from antiphon.protocol.content import InputAudio, InputFile, InputImage, InputVideo, Part, get_part_type
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.tools import AllowedToolsChoice, FunctionChoice, FunctionTool, get_tool_type

#: Parameter path -> whether the request asks for it. Walked in order.
UNSUPPORTED: dict[str, Callable[[CreateRequest], Any]] = {
    "conversation": lambda request: request.conversation,
    "prompt": lambda request: request.prompt,
    "moderation": lambda request: request.moderation,
    "background": lambda request: request.background,
    "background_options": lambda request: request.background_options,
    "max_tool_calls": lambda request: request.max_tool_calls,
    "truncation": lambda request: request.truncation != "disabled",
    "context_management": lambda request: request.context_management,
    "image": lambda request: request.image,
    "access_programs": lambda request: request.access_programs,
    "antiphon": lambda request: request.antiphon,
    "reasoning.context": lambda request: (
        request.reasoning and request.reasoning.context not in (None, "auto", "all_turns")
    ),
    "reasoning.mode": lambda request: request.reasoning and request.reasoning.mode not in (None, "standard"),
}
#: Of `include`, what there is to include here.
INCLUDABLE = frozenset({"message.output_text.logprobs", "message.input_image.image_url"})
#: Fields of a function tool that change how it is called.
_TOOL_FIELDS: dict[str, Callable[[FunctionTool], Any]] = {
    "async": lambda tool: tool.is_async,
    "defer_loading": lambda tool: tool.defer_loading,
    "allowed_callers": lambda tool: tool.allowed_callers not in (None, ["direct"]),
    "output_schema": lambda tool: tool.output_schema,
}
_UNREAD_PARTS = (InputFile, InputAudio, InputVideo)


def refuse_unsupported(request: CreateRequest) -> None:
    """Raise for the first thing asked for that is not carried out here."""
    for param, asks in UNSUPPORTED.items():
        if asks(request):
            raise unsupported(param)
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    if request.tool_choice_given and not request.tools and request.tool_choice not in ("auto", "none"):
        raise RequestError(
            "Invalid 'tool_choice': a tool can only be forced when 'tools' are given.",
            param="tool_choice",
            code="invalid_value",
        )
    for position, name in enumerate(request.include):
        if name not in INCLUDABLE:
            raise unsupported(f"include[{position}]", f"'{name}'")
    for position, tool in enumerate(request.tools):
        if not isinstance(tool, FunctionTool):
            raise unsupported(f"tools[{position}].type", f"'{get_tool_type(tool)}' tools")
        for field, asks_of in _TOOL_FIELDS.items():
            if asks_of(tool):
                raise unsupported(f"tools[{position}].{field}")
    choice = request.tool_choice
    if not isinstance(choice, str | FunctionChoice | AllowedToolsChoice):
        raise unsupported("tool_choice.type", f"'{get_tool_type(choice)}'")
    for position, item in enumerate(request.input):
        refuse_item(item, f"input[{position}]")


def refuse_item(item: Item, where: str) -> None:
    """Raise for an item that cannot be carried to a chat backend yet."""
    value = item.value
    if isinstance(value, Message):
        _refuse_parts(value.content, f"{where}.content", text_only=value.role != "user")
    elif isinstance(value, FunctionCallOutput):
        _refuse_parts(value.output, f"{where}.output", text_only=False)
    elif isinstance(value, Reasoning):
        if value.encrypted_content is not None:
            name = f"item {value.id}" if value.id else "a reasoning item"
            raise RequestError(
                f"The encrypted content for {name} could not be verified. Reason: this server has sealed none.",
                code="invalid_encrypted_content",
            )
    elif not isinstance(value, FunctionCall):
        raise unsupported(where, f"items of type '{item.type}'")
    if isinstance(value, FunctionCall | FunctionCallOutput):
        if value.namespace is not None:
            raise unsupported(f"{where}.namespace")
        if value.caller is not None and value.caller.type != "direct":
            raise unsupported(f"{where}.caller")
    if isinstance(value, FunctionCall) and value.is_async:
        raise unsupported(f"{where}.async")


def has_image(item: Item) -> bool:
    """Whether an item holds an image."""
    value = item.value
    content: Any = getattr(value, "content", None) or getattr(value, "output", None)
    return isinstance(content, list) and any(isinstance(part, InputImage) for part in content)


def refuse_images(request: CreateRequest, profile: Profile, *, in_history: bool) -> None:
    """Raise for an image that the model cannot see, be it new or in the history that is continued."""
    if profile.sees_images is not False:
        return
    if in_history:
        raise RequestError(
            f"The model '{request.model}' does not see images, and the history of the previous response holds some. "
            "Continue with a model that does, or from an earlier response.",
            param="previous_response_id",
            code="invalid_value",
        )
    for position, item in enumerate(request.input):
        if has_image(item):
            raise RequestError(
                f"The model '{request.model}' does not see images. Leave the image out, or use a model that does.",
                param=f"input[{position}]",
                code="invalid_value",
            )


def unsupported(param: str, what: str | None = None) -> RequestError:
    """The refusal of something that the API has and this server does not carry out yet."""
    subject = f"'{param}' ({what})" if what else f"'{param}'"
    return RequestError(
        f"Unsupported parameter: {subject}. This server does not carry that out yet; leave it out.",
        param=param,
        code="unsupported_parameter",
    )


def _refuse_parts(content: str | list[Any], where: str, *, text_only: bool) -> None:
    if isinstance(content, str):
        return
    for position, part in enumerate(content):
        _refuse_part(part, f"{where}[{position}]", text_only=text_only)


def _refuse_part(part: Part, where: str, *, text_only: bool) -> None:
    if isinstance(part, _UNREAD_PARTS):
        raise unsupported(where, f"'{get_part_type(part)}' parts")
    if not isinstance(part, InputImage):
        return
    if text_only:
        raise unsupported(where, "images in system and developer messages")
    if part.file_id is not None or part.image_url is None:
        raise unsupported(f"{where}.file_id")
    if not part.image_url.startswith("data:image/"):
        raise RequestError(
            f"Invalid '{where}.image_url': this server fetches no images. Send a data URL "
            "(data:image/png;base64,...).",
            param=f"{where}.image_url",
            code="invalid_image_url",
        )
