"""Content parts -> the content of a chat message: text, and images where there are some.

It knows parts alone. Invariant: a part that a chat message cannot hold is named in its place.
"""

from collections.abc import Sequence
from typing import Any

from antiphon.protocol.content import (
    InputImage,
    InputText,
    OutputText,
    Part,
    ReasoningText,
    Refusal,
    SummaryText,
    get_part_type,
)
from antiphon.protocol.items import Reasoning


def find_images(content: str | Sequence[Part]) -> list[InputImage]:
    """The images that can be shown: those with an address."""
    return [] if isinstance(content, str) else [part for part in content if _is_shown(part)]  # type: ignore[misc]


def find_untold(content: str | Sequence[Part]) -> list[str]:
    """The types of the parts that a chat message cannot hold, in their order."""
    if isinstance(content, str):
        return []
    return [get_part_type(part) for part in content if not isinstance(part, _TOLD) and not _is_shown(part)]


def read_text(content: str | Sequence[Part], image_text: str = "") -> str:
    """The text of some parts, a line each; `image_text` stands for an image."""
    if isinstance(content, str):
        return content
    return "\n".join(image_text if _is_shown(part) else _read_part(part) for part in content)


def read_content(content: str | Sequence[Part]) -> str | list[dict[str, Any]]:
    """Text as one string, which every template takes; a list of parts only where there are images."""
    if isinstance(content, str):
        return content
    if not find_images(content):
        return read_text(content)
    return [
        encode_image(part)
        if isinstance(part, InputImage) and _is_shown(part)
        else encode_text(_read_part(part))
        for part in content
    ]


def read_reasoning(reasoning: Reasoning) -> str:
    """The raw reasoning, else its summaries."""
    parts: Sequence[Part] = reasoning.content or reasoning.summary
    return "\n\n".join(_read_part(part) for part in parts)


def encode_text(text: str) -> dict[str, Any]:
    """A text part of a chat message."""
    return {"type": "text", "text": text}


def encode_image(part: InputImage) -> dict[str, Any]:
    """An image part of a chat message."""
    image: dict[str, Any] = {"url": part.image_url}
    if part.detail in ("low", "high"):
        image["detail"] = part.detail
    return {"type": "image_url", "image_url": image}


_TOLD = (InputText, OutputText, SummaryText, ReasoningText, Refusal)


def _is_shown(part: Part) -> bool:
    return isinstance(part, InputImage) and part.image_url is not None


def _read_part(part: Part) -> str:
    if isinstance(part, InputText | OutputText | SummaryText | ReasoningText):
        return part.text
    if isinstance(part, Refusal):
        return part.refusal
    name = getattr(part, "filename", None) or get_part_type(part)
    return f"[{name}: not shown]"
