"""What a server of our own kind warns of in its response: read as warnings of ours.

Pure. Invariant: a code is a short word, a text is bounded, and what is neither is left out.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

from antiphon.backends.responses.json_fields import read_list, read_object, read_text

#: No response of ours warns of more.
WARNINGS: Final = 32
MESSAGE_CHARACTERS: Final = 1_000
_CODE: Final = re.compile(r"[a-z0-9_]{1,64}")


def read_warnings(extension: Raw | None) -> tuple[tuple[str, str], ...]:
    """The warnings under the key `antiphon` of a response, as (code, text)."""
    try:
        listed = read_list((read_object(extension) or {}).get("warnings"))
        told = [read_object(each) or {} for each in listed[:WARNINGS]]
        pairs = [(read_text(each.get("code")) or "", read_text(each.get("message"))) for each in told]
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(
        (code, f"The model server warns: {text[:MESSAGE_CHARACTERS]}")
        for code, text in pairs
        if text and _CODE.fullmatch(code)
    )
