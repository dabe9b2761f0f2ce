"""Which form a file has: text, PDF, image, or none that is read; by its media type, its name, its first bytes.

Pure, with tables of its own: the machine's list of media types differs from machine to machine, and a file
must be read the same way whenever its path is rebuilt.
"""

import base64
import binascii
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from antiphon.engine.files.data_urls import split_data_url
from antiphon.engine.files.images import IMAGE_TYPES, find_image_type
from antiphon.engine.files.unreadable import UnreadableFileError

#: What the error for any other type names.
SUPPORTED = (
    "text (text/*, JSON, XML, YAML, TOML, CSV, Markdown, source code), PDF, and images (PNG, JPEG, GIF, WebP)"
)
#: Base64 characters that are decoded to look at a file's first bytes; a multiple of four.
SNIFF_LENGTH = 2048
#: Longest name that is told to a model.
NAME_LENGTH = 200

PDF_TYPE = "application/pdf"
#: Types that say nothing.
_UNTOLD = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/x-unknown"})
_TEXT_TYPE_NAMES = (
    "csv ecmascript graphql javascript json json5 jsonl ld+json ndjson node sql toml typescript x-httpd-php "
    "x-javascript x-json x-jsonlines x-latex x-ndjson x-perl x-php x-powershell x-python x-python-code x-ruby "
    "x-sh x-shellscript x-sql x-subrip x-tex x-toml x-typescript x-yaml xhtml+xml xml yaml"
)
_TEXT_TYPES = frozenset(f"application/{name}" for name in _TEXT_TYPE_NAMES.split())
_TEXT_SUFFIX_NAMES = (
    "adoc asm astro awk bash bat bib c cc cfg clj cljs cmake cmd conf cpp cs css csv cxx dart diff dockerfile "
    "el elm env erl ex exs f90 fish fs go gradle graphql groovy h hcl hpp hs htm html http ics ini ipynb java "
    "jl js json json5 jsonc jsonl jsx kt kts less lisp lock log lua m make makefile markdown md mdx mjs ml "
    "ndjson nim nix org pas patch php pl pm po properties proto ps1 py pyi r rb rs rst sass scala scm scss sh "
    "sol sql srt svelte swift tcl tex text tf toml ts tsv tsx txt v vb vbs vcf vhdl vim vtt vue xhtml xml xsd "
    "xsl yaml yml zig zsh"
)
_TEXT_SUFFIXES = frozenset(_TEXT_SUFFIX_NAMES.split())
_IMAGE_SUFFIXES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
}


class FileForm(msgspec.Struct, frozen=True):
    """How a file is read. `start` is where its base64 begins; `charset` is what the sender says of a text."""

    kind: Literal["text", "pdf", "image"]
    media_type: str
    start: int
    charset: str | None = None


def find_form(data: str, filename: str | None) -> FileForm:
    """The form of a file from its `file_data`, a data URL or plain base64; raises `UnreadableFileError`.

    The media type decides, where it is one that is read; else the name; else, where no type is told, the
    first bytes.
    """
    url = split_data_url(data)
    if url is not None and not url.is_base64:
        raise UnreadableFileError("the data URL is not in base64 (data:TYPE;base64,...)")
    if url is None and data[:5].lower() == "data:":
        raise UnreadableFileError("the data URL is malformed (data:TYPE;base64,...)")
    declared = url.media_type if url is not None else ""
    start = url.start if url is not None else 0
    charset = url.charset if url is not None else None
    for media_type in (_normalise_type(declared), _find_named_type(filename)):
        kind = _find_kind(media_type)
        if kind is not None:
            return FileForm(kind, media_type, start, charset)
    if declared in _UNTOLD:
        return _sniff(data, start, charset)
    raise UnreadableFileError(f"files of type '{declared}' are not read here; supported are {SUPPORTED}")


def show_name(filename: str | None) -> str:
    """A file's name as it may stand in a line of a prompt: no line breaks or control characters, not too long."""
    name = " ".join("".join(c if c.isprintable() else " " for c in filename or "").split())
    return name if len(name) <= NAME_LENGTH else f"{name[:NAME_LENGTH]}..."


def _normalise_type(media_type: str) -> str:
    return "image/jpeg" if media_type in ("image/jpg", "image/pjpeg") else media_type


def _find_kind(media_type: str) -> Literal["text", "pdf", "image"] | None:
    if media_type in (PDF_TYPE, "application/x-pdf"):
        return "pdf"
    if media_type in IMAGE_TYPES:
        return "image"
    if media_type.startswith("text/") or media_type in _TEXT_TYPES:
        return "text"
    # Formats that build on these say so (RFC 6839); an SVG is an image to look at, but text to read.
    if media_type.endswith(("+json", "+xml", "+yaml")):
        return "text"
    return None


def _find_named_type(filename: str | None) -> str:
    """The type that a name tells: `"notes.md"` -> `"text/plain"`; empty when it tells none."""
    name = PurePosixPath((filename or "").replace("\\", "/")).name.lower()
    suffix = name.rpartition(".")[2]
    if suffix == "pdf" and suffix != name:
        return PDF_TYPE
    if suffix in _IMAGE_SUFFIXES and suffix != name:
        return _IMAGE_SUFFIXES[suffix]
    # `Dockerfile` and `.env` are their own suffix.
    return "text/plain" if suffix in _TEXT_SUFFIXES else ""


def _sniff(data: str, start: int, charset: str | None) -> FileForm:
    piece = data[start : start + SNIFF_LENGTH]
    try:
        head = base64.b64decode(piece[: len(piece) // 4 * 4])
    except (binascii.Error, ValueError):
        head = b""
    if head.lstrip()[:5] == b"%PDF-":
        return FileForm("pdf", PDF_TYPE, start)
    image_type = find_image_type(head)
    if image_type is not None:
        return FileForm("image", image_type, start)
    # Decoding tells whether it is text.
    return FileForm("text", "text/plain", start, charset)
