"""Flat names: under which name a chat model calls a tool, made from the tool's own name alone.

It knows no request, so a call in an old history gets the name that it had when it was made. Invariant: a
flat name passes every chat server's check of a function's name.
"""

import hashlib
import re
from typing import Final

#: The longest name that Chat Completions servers take.
FLAT_NAME_CHARACTERS: Final = 64
#: What stands between a namespace and the name of its member.
NAMESPACE_SEPARATOR: Final = "__"

#: The flat names of tools that have a type instead of a name.
TOOL_SEARCH_NAME: Final = "tool_search"
LOCAL_SHELL_NAME: Final = "local_shell"
SHELL_NAME: Final = "shell"
APPLY_PATCH_NAME: Final = "apply_patch"
WEB_SEARCH_NAME: Final = "web_search"

_LEGAL = re.compile(f"[a-zA-Z0-9_-]{{1,{FLAT_NAME_CHARACTERS}}}")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_DIGEST_CHARACTERS: Final = 8


def flatten_name(namespace: str | None, name: str) -> str:
    """The flat name of a tool: `("mcp__echo", "say")` -> `"mcp__echo__say"`, `(None, "f")` -> `"f"`.

    What is too long or illegal is cut or replaced, and then ends with a hash of the whole.
    """
    whole = name if namespace is None else f"{namespace}{NAMESPACE_SEPARATOR}{name}"
    if _LEGAL.fullmatch(whole):
        return whole
    legal = _ILLEGAL.sub("_", whole)
    digest = hashlib.sha256(f"{namespace or ''}\0{name}".encode(errors="surrogatepass")).hexdigest()
    kept = legal[: FLAT_NAME_CHARACTERS - _DIGEST_CHARACTERS - 1]
    return f"{kept}_{digest[:_DIGEST_CHARACTERS]}"


def make_prefix(namespace: str) -> str:
    """What the flat names of all members of a namespace begin with."""
    legal = _ILLEGAL.sub("_", f"{namespace}{NAMESPACE_SEPARATOR}")
    return legal[: FLAT_NAME_CHARACTERS - _DIGEST_CHARACTERS - 1]
