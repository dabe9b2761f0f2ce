"""What this server does not carry out, refused by name: a table, and the walk over it.

It knows the request alone; tools are judged where the toolbox is built, files and images where they are read.
Invariant: a field of the API is carried out, told to a server that speaks Responses itself, or stands here;
nothing is accepted and forgotten.
"""

from collections.abc import Callable
from typing import Any

from antiphon.context import Profile
from antiphon.protocol.content import InputImage
from antiphon.protocol.errors import RequestError, shorten_quoted
from antiphon.protocol.items import (
    AgentMessage,
    CodeInterpreterCall,
    ComputerCall,
    ComputerCallOutput,
    FileSearchCall,
    ImageGenerationCall,
    Item,
    Program,
    ProgramOutput,
    check_known,
)
from antiphon.protocol.requests import CreateRequest

#: Parameter path -> whether the request asks for it. Walked in order.
UNSUPPORTED: dict[str, Callable[[CreateRequest], Any]] = {
    "prompt": lambda request: request.prompt,
    "moderation": lambda request: request.moderation,
    "background_options": lambda request: request.background_options,
    "image": lambda request: request.image,
    "access_programs": lambda request: request.access_programs,
    "reasoning.context": lambda request: (
        request.reasoning and request.reasoning.context not in (None, "auto", "all_turns")
    ),
    "reasoning.mode": lambda request: request.reasoning and request.reasoning.mode not in (None, "standard"),
    "prompt_cache_options.prewarm": lambda request: (
        request.prompt_cache_options and request.prompt_cache_options.prewarm
    ),
    "prompt_cache_options.comparison_response_id": lambda request: (
        request.prompt_cache_options and request.prompt_cache_options.comparison_response_id
    ),
}
#: Of these, what a server that speaks Responses is told, and decides itself.
PASSED_ON = frozenset(
    {
        "prompt",
        "moderation",
        "image",
        "access_programs",
        "reasoning.context",
        "reasoning.mode",
        "prompt_cache_options.prewarm",
        "prompt_cache_options.comparison_response_id",
    }
)
#: Why, and what to do, where there is more to say than to leave it out.
_REMEDIES = {
    "background_options": "This server runs background responses as soon as it can; leave it out.",
}
#: Of `include`, what there is to include here.
INCLUDABLE = frozenset(
    {
        "message.output_text.logprobs",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.results",
        "web_search_call.action.sources",
    }
)
#: Items that no chat message can say.
_UNTOLD_ITEMS = (
    CodeInterpreterCall,
    ComputerCall,
    ComputerCallOutput,
    FileSearchCall,
    ImageGenerationCall,
    Program,
    ProgramOutput,
)


def refuse_unsupported(request: CreateRequest, *, speaks_responses: bool) -> None:
    """Raise for the first thing asked for that is not carried out here.

    A server that speaks Responses gets tools, items and most settings as they came, and decides itself.
    """
    for param, asks in UNSUPPORTED.items():
        if asks(request) and not (speaks_responses and param in PASSED_ON):
            raise unsupported(param, remedy=_REMEDIES.get(param))
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    if speaks_responses:
        return
    for position, name in enumerate(request.include):
        if name not in INCLUDABLE:
            raise unsupported(f"include[{position}]", f"'{name}'")
    for position, item in enumerate(request.input):
        refuse_item(item, f"input[{position}]")


def refuse_item(item: Item, where: str) -> None:
    """Raise for an item that cannot be told to a chat model."""
    check_known(item, where)
    value = item.value
    if isinstance(value, _UNTOLD_ITEMS):
        remedy = "A chat model cannot be told of such items; leave it out."
        raise unsupported(where, f"items of type '{item.type}'", remedy=remedy)
    if isinstance(value, AgentMessage):
        _refuse_sealed_parts(value, where)
    caller = getattr(value, "caller", None)
    if caller is not None and caller.type != "direct":
        remedy = "A chat model makes no programs that call tools."
        raise unsupported(f"{where}.caller", f"'{caller.type}'", remedy=remedy)


def _refuse_sealed_parts(message: AgentMessage, where: str) -> None:
    if isinstance(message.content, str):
        return
    for position, part in enumerate(message.content):
        path = f"{where}.content[{position}]"
        if part.get("type") == "encrypted_content":
            remedy = "Only the server that sealed it can read it; leave the item out."
            raise unsupported(path, "sealed content", remedy=remedy)
        if _is_image(part) and not str(part.get("image_url")).startswith("data:image/"):
            remedy = "Send a data URL (data:image/png;base64,...) in 'image_url'."
            raise unsupported(path, "an image that is not in the message", remedy=remedy)


def has_image(item: Item) -> bool:
    """Whether an item holds an image."""
    value = item.value
    content: Any = getattr(value, "content", None) or getattr(value, "output", None)
    return isinstance(content, list) and any(map(_is_image, content))


def _is_image(part: Any) -> bool:
    """Parts of messages between agents have no typed view."""
    return isinstance(part, InputImage) or (isinstance(part, dict) and part.get("type") == "input_image")


def refuse_images(request: CreateRequest, profile: Profile, *, in_history: bool) -> None:
    """Raise for an image that the model cannot see, be it new or in the history that is continued."""
    if profile.sees_images is not False:
        return
    if in_history:
        raise RequestError(
            f"The model '{shorten_quoted(request.model)}' does not see images, and the history of the "
            "previous response holds some. Continue with a model that does, or from an earlier response.",
            param="previous_response_id",
            code="invalid_value",
        )
    for position, item in enumerate(request.input):
        if has_image(item):
            raise RequestError(
                f"The model '{shorten_quoted(request.model)}' does not see images. Leave the image "
                "out, or use a model that does.",
                param=f"input[{position}]",
                code="invalid_value",
            )


def unsupported(param: str, what: str | None = None, *, remedy: str | None = None) -> RequestError:
    """The refusal of something that the API has and this server does not carry out."""
    subject = f"'{param}' ({what})" if what else f"'{param}'"
    return RequestError(
        f"Unsupported parameter: {subject}. {remedy or 'This server does not carry that out yet; leave it out.'}",
        param=param,
        code="unsupported_parameter",
    )
