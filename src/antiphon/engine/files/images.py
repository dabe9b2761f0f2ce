"""Images as data URLs: whether a model server will find one in it, and making one from bytes.

It knows formats by their first bytes and decodes no image. Invariant: a data URL that passes is base64 all
through, begins like one of the four formats, and its header tells a size that somebody may want to decode.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Final

from antiphon.context.image_costs import HEAD_BYTES, read_image_size
from antiphon.engine.files.data_urls import DataUrl, find_base64_fault, split_data_url
from antiphon.engine.files.unreadable import ContentError
from antiphon.protocol.content import IMAGE_URL_MAX_LENGTH

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
DATA_URL_HINT = "send a data URL (data:image/png;base64,...)"
#: A larger image has no data URL of the longest length that there may be.
IMAGE_BYTES_AT_MOST = IMAGE_URL_MAX_LENGTH // 4 * 3 - 64
#: An image that says to be larger is decoded by nobody who can help it; cameras reach 200 million pixels.
SIDE_AT_MOST: Final = 32_768
PIXELS_AT_MOST: Final = 1 << 28
#: Bytes that are looked at for the size: enough for nearly all, and for photos with much told before it.
_HEADS: Final = (HEAD_BYTES, 2 << 20)
_TYPE_NAMES = ", ".join(IMAGE_TYPES)


def check_image(url: str, path: str) -> None:
    """Raise `ContentError` (codes of the API's own set) unless an image of a known format is in the data URL.

    Which of the formats the URL says is not held against it: model servers look at the bytes. Takes 0.8 ms
    for each MB, and copies the beginning alone.
    """
    head = split_data_url(url)
    if head is None:
        raise ContentError(
            f"that is no URL of an image; {DATA_URL_HINT}", param=path, code="invalid_image_url"
        )
    _check_head(head, path)
    if len(url) > IMAGE_URL_MAX_LENGTH:
        raise _make_too_large(path)
    if len(url) == head.start:
        raise _make_empty(path)
    fault = find_base64_fault(url, head.start)
    if fault is not None:
        raise ContentError(fault, param=path, code="invalid_base64_image")
    _check_size(
        lambda size: binascii.a2b_base64(url[head.start : head.start + size // 3 * 4]), path, "the data is"
    )


def make_image_url(body: bytes, path: str) -> str:
    """The data URL of an image that was fetched; raises `ContentError` when it is none.

    The type is told by the bytes, since many servers tell a wrong one or none.
    """
    if not body:
        raise _make_empty(path)
    if len(body) > IMAGE_BYTES_AT_MOST:
        raise _make_too_large(path)
    media_type = _check_size(lambda size: body[:size], path, "what stands there is")
    return f"data:{media_type};base64,{base64.b64encode(body).decode()}"


def _check_size(read: Callable[[int], bytes], path: str, what: str) -> str:
    """The type of the image whose first bytes `read` gives; raises where it has none, or an absurd size."""
    media_type = find_image_type(read(12))
    if media_type is None:
        reason = f"{what} no image of the types {_TYPE_NAMES}"
        raise ContentError(reason, param=path, code="invalid_image_format")
    size = next((found for length in _HEADS if (found := read_image_size(read(length)))), None)
    if size is None:
        reason = f"the header of the image ({media_type}) cannot be read"
        raise ContentError(reason, param=path, code="invalid_image_format")
    if max(size) > SIDE_AT_MOST or size[0] * size[1] > PIXELS_AT_MOST:
        reason = f"the image is {size[0]} by {size[1]} pixels large; send a smaller one"
        raise ContentError(reason, param=path, code="image_too_large")
    return media_type


def find_image_type(head: bytes) -> str | None:
    """The media type of an image by its first 12 bytes; None when it is none of the four."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def _check_head(head: DataUrl, path: str) -> None:
    media_type = head.media_type
    if not media_type.startswith("image/"):
        reason = f"a data URL of type '{media_type}' is no image; {DATA_URL_HINT}"
        raise ContentError(reason, param=path, code="invalid_image_url")
    if media_type not in (*IMAGE_TYPES, "image/jpg"):
        reason = f"images of type '{media_type}' are not read; supported are {_TYPE_NAMES}"
        raise ContentError(reason, param=path, code="unsupported_image_media_type")
    if not head.is_base64:
        reason = f"the data URL is not in base64; {DATA_URL_HINT}"
        raise ContentError(reason, param=path, code="invalid_base64_image")


def _make_empty(path: str) -> ContentError:
    return ContentError("the image is empty", param=path, code="empty_image_file")


def _make_too_large(path: str) -> ContentError:
    reason = f"the image has more than {IMAGE_BYTES_AT_MOST} bytes"
    return ContentError(reason, param=path, code="image_file_too_large")
