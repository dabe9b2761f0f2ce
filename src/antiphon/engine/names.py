"""Names and ids that models and servers make up, fitted to what the API allows.

What a client is given it must be able to send back. Invariant: a fitted name or id passes the checks of
a request's input.
"""

import re
from collections.abc import Collection

#: Bounds of the API on a function's name and a call's id.
NAME_CHARACTERS = 128
CALL_ID_CHARACTERS = 64

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
#: Models put a namespace before a name: functions.look, default_api:look.
_SEPARATORS = re.compile(r"[./:]+")
#: What they are told to put there.
_FLAT_SEPARATOR = "__"


def fit_name(name: str, offered: Collection[str]) -> str:
    """The offered tool that a called name means, else the name with what is illegal in it replaced.

    "functions.look" -> "look" where that is offered, else "functions_look"; "echo.say" and "say" ->
    "echo__say" where that is offered and no other tool's name ends so.
    """
    if not name or name in offered:
        return name
    flat = _SEPARATORS.sub(_FLAT_SEPARATOR, name)
    if flat in offered:
        return flat
    tail = _SEPARATORS.split(name)[-1]
    if tail in offered:
        return tail
    members = [each for each in offered if tail and each.endswith(_FLAT_SEPARATOR + tail)]
    if len(members) == 1:
        return members[0]
    if _LEGAL_NAME.fullmatch(name):
        return name
    return _ILLEGAL.sub("_", name)[:NAME_CHARACTERS]


def find_hidden(name: str, hidden: Collection[str], prefixes: tuple[str, ...]) -> str | None:
    """The flat name that a called name means, where it is one of these or begins with one of the prefixes."""
    flat = _ILLEGAL.sub("_", _SEPARATORS.sub(_FLAT_SEPARATOR, name))
    for each in (name, flat, _SEPARATORS.split(name)[-1]):
        if each in hidden:
            return each
    return flat if prefixes and flat.startswith(prefixes) else None


def is_legal_call_id(call_id: str) -> bool:
    """Whether a client could send the id back."""
    return 0 < len(call_id) <= CALL_ID_CHARACTERS
