"""Data URLs and base64, looked at in place: an image of 20 MB is not copied to be checked.

Knows nothing of what is in them. Invariant: `split_data_url` reads no further than `HEADER_LENGTH`.
"""

import re

import msgspec

#: A data URL says within so many characters what it is.
HEADER_LENGTH = 256
# Possessive, so that a long text is walked once.
_BASE64 = re.compile(r"[A-Za-z0-9+/]*+={0,2}")
_CHARSET = re.compile(r"charset=\"?([\w.:+-]+)\"?", re.IGNORECASE)


class DataUrl(msgspec.Struct, frozen=True):
    """What stands before the data: `"data:text/plain;charset=latin1;base64,..."`; `start` is where data begins."""

    media_type: str
    charset: str | None
    is_base64: bool
    start: int


def split_data_url(url: str) -> DataUrl | None:
    """The head of a data URL; None when it is none. The media type is in lower case, and may be empty."""
    if url[:5].lower() != "data:":
        return None
    comma = url.find(",", 5, HEADER_LENGTH)
    if comma < 0:
        return None
    media_type, *parameters = (piece.strip() for piece in url[5:comma].split(";"))
    charset = next((match[1] for piece in parameters if (match := _CHARSET.fullmatch(piece))), None)
    is_base64 = any(piece.lower() == "base64" for piece in parameters)
    return DataUrl(media_type.lower(), charset, is_base64, comma + 1)


def find_base64_fault(text: str, start: int = 0) -> str | None:
    """What is wrong with base64 that begins at `start`; None when it can be decoded. Copies nothing."""
    match = _BASE64.match(text, start)
    end = match.end() if match is not None else start
    if end < len(text):
        return f"the character at position {end - start} of the data is none of base64"
    if (len(text) - start) % 4:
        return "the data is not whole: base64 comes in groups of four characters"
    return None
