"""Content parts: what stands inside messages, tool outputs, reasoning and screenshots.

Knows nothing of the items around them. Invariant: a field that may be left out is None when it was left
out or null, and is then not encoded; fields unknown to a part are skipped here and live on in the raw bytes.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

#: Longest text of a part, a string input or a tool output, in characters.
TEXT_MAX_LENGTH = 10_485_760
#: Longest image URL; a data URL holds the whole image.
IMAGE_URL_MAX_LENGTH = 20_971_520
#: Longest base64 file.
FILE_DATA_MAX_LENGTH = 73_400_320

Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_MAX_LENGTH)]
ImageUrl: TypeAlias = Annotated[str, Meta(max_length=IMAGE_URL_MAX_LENGTH)]
FileData: TypeAlias = Annotated[str, Meta(max_length=FILE_DATA_MAX_LENGTH)]
ImageDetail: TypeAlias = Literal["auto", "low", "high", "original"]


class CacheBreakpoint(msgspec.Struct, gc=False, omit_defaults=True):
    """The client's hint that the prompt cache should end here."""

    mode: Literal["explicit"]
    ttl: str | None = None


class Part(msgspec.Struct, tag_field="type", gc=False, omit_defaults=True):
    """What all content parts share: the `type` key tells them apart."""


class InputText(Part, tag="input_text"):
    """Text for the model."""

    text: Text
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputImage(Part, tag="input_image"):
    """An image for the model, by URL (http or data) or by file id."""

    image_url: ImageUrl | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputFile(Part, tag="input_file"):
    """A file for the model, in base64, by id or by URL."""

    file_data: FileData | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Literal["auto", "low", "high"] | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class AudioData(msgspec.Struct, gc=False):
    """Base64 audio and its format."""

    data: str
    format: Literal["mp3", "wav"]


class InputAudio(Part, tag="input_audio"):
    """Audio for the model."""

    input_audio: AudioData


class InputVideo(Part, tag="input_video"):
    """A video for the model (Open Responses only)."""

    video_url: str


class FileCitation(Part, tag="file_citation"):
    """An annotation: the text cites a file."""

    file_id: str
    index: int
    filename: str | None = None


class UrlCitation(Part, tag="url_citation"):
    """An annotation: the text cites a web page."""

    url: str
    title: str
    start_index: int
    end_index: int


class ContainerFileCitation(Part, tag="container_file_citation"):
    """An annotation: the text cites a file in a container."""

    container_id: str
    file_id: str
    filename: str
    start_index: int
    end_index: int


class FilePath(Part, tag="file_path"):
    """An annotation: the text names a generated file."""

    file_id: str
    index: int


Annotation: TypeAlias = FileCitation | UrlCitation | ContainerFileCitation | FilePath


class TopLogprob(msgspec.Struct, gc=False):
    """One alternative token."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class Logprob(msgspec.Struct, gc=False):
    """One token of the text, with its alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] | None = []


class OutputText(Part, tag="output_text", omit_defaults=False):
    """Text from the model; `annotations` and `logprobs` are always sent, empty where there are none."""

    text: Text
    annotations: list[Annotation] | None = []
    logprobs: list[Logprob] | None = []


class Refusal(Part, tag="refusal"):
    """The model's refusal."""

    refusal: Text


class ReasoningText(Part, tag="reasoning_text"):
    """Raw reasoning."""

    text: Text


class SummaryText(Part, tag="summary_text"):
    """A summary of reasoning."""

    text: Text


class ComputerScreenshot(Part, tag="computer_screenshot"):
    """A screenshot of a computer, by URL or by file id."""

    image_url: ImageUrl | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None


#: What user, system and developer messages may hold.
InputPart: TypeAlias = InputText | InputImage | InputFile | InputAudio | InputVideo
#: What assistant messages may hold.
OutputPart: TypeAlias = OutputText | Refusal
#: What a message may hold at all; its role narrows it.
MessagePart: TypeAlias = InputPart | OutputPart
#: What the output of a function or custom tool may hold.
ToolOutputPart: TypeAlias = InputText | InputImage | InputFile

INPUT_PART_TYPES = ("input_text", "input_image", "input_file", "input_audio", "input_video")
OUTPUT_PART_TYPES = ("output_text", "refusal")
#: The struct of every part that messages, tool outputs and reasoning hold, by its type.
PARTS: dict[str, type[Part]] = {
    str(part.__struct_config__.tag): part
    for part in (
        InputText,
        InputImage,
        InputFile,
        InputAudio,
        InputVideo,
        OutputText,
        Refusal,
        ReasoningText,
        SummaryText,
    )
}


def get_part_type(part: Part) -> str:
    """The wire name of a part: `InputText(...)` -> `"input_text"`."""
    return str(type(part).__struct_config__.tag)
