"""What a call asks for: its name, its arguments in one form, the shell command in it, the file that it reads.

Knows tools by the names and arguments that coding agents give them, and guesses nothing of others. Invariant: two calls
have the same `key` only if they are the very same call.
"""

import re
from typing import Any, Final

import msgspec

from antiphon.protocol.items import Item, get_call_id


class FileRead(msgspec.Struct, frozen=True):
    """Which file a call reads, and what of it: None is all, two numbers are lines, bytes are any other choice."""

    path: str
    part: tuple[int, int] | bytes | None = None

    def covers(self, other: "FileRead") -> bool:
        """Whether what this reads holds all that the other does."""
        if self.path != other.path:
            return False
        if self.part is None or self.part == other.part:
            return True
        if isinstance(self.part, tuple) and isinstance(other.part, tuple):
            return self.part[0] <= other.part[0] and other.part[1] <= self.part[1]
        return False


class CallFacts(msgspec.Struct, frozen=True):
    """What a call asks for. `key` is the same for the very same call; empty where nothing is known of it."""

    name: str = ""
    key: bytes = b""
    arguments: str = ""
    command: str = ""
    read: FileRead | None = None

    @property
    def is_poll(self) -> bool:
        """Whether the call asks for what is new since the last one, so that none repeats another."""
        return bool(_POLL_NAME.search(self.name))


UNKNOWN_CALL: Final = CallFacts()
_POLL_NAME: Final = re.compile(r"wait|poll|stdin|sleep|monitor|(?:bash|task|shell|process|session)_?output")
_READ_NAMES: Final = frozenset(
    {
        "cat",
        "file_read",
        "fs_read",
        "get_file",
        "get_file_contents",
        "open",
        "open_file",
        "read",
        "read_file",
        "read_file_content",
        "read_file_contents",
        "read_text_file",
        "readfile",
        "view",
        "view_file",
        "view_image",
    }
)
#: Tools of several commands, one of which reads.
_EDITOR_NAMES: Final = frozenset({"str_replace_based_edit_tool", "str_replace_editor", "editor"})
_PATH_KEYS: Final = (
    "path",
    "file_path",
    "filepath",
    "file",
    "filename",
    "absolute_path",
    "abs_path",
    "target_file",
    "uri",
)
#: Arguments that do not change what a call reads.
_IDLE_KEYS: Final = frozenset(
    {
        "description",
        "explanation",
        "justification",
        "reason",
        "thought",
        "timeout",
        "timeout_ms",
        "yield_time_ms",
    }
)
_FOLDER_KEYS: Final = ("workdir", "cwd", "working_directory")
_COMMAND_KEYS: Final = ("cmd", "command", "commands", "script")
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh"})
_COMMAND_CHARS: Final = 2_000

_decode = msgspec.json.Decoder().decode
_encode_canonical = msgspec.json.Encoder(order="deterministic").encode


def read_call(item: Item) -> CallFacts:
    """What a call item asks for; `UNKNOWN_CALL` for any other item."""
    value = item.value
    name = getattr(value, "name", None) or item.type
    if item.type in ("function_call", "mcp_call"):
        arguments = _parse(getattr(value, "arguments", ""))
    elif item.type == "custom_tool_call":
        arguments = getattr(value, "input", "")
    elif item.type in ("local_shell_call", "shell_call", "web_search_call"):
        arguments = msgspec.to_builtins(getattr(value, "action", None))
    elif item.type == "file_search_call":
        arguments = msgspec.to_builtins(getattr(value, "queries", None))
    else:
        return UNKNOWN_CALL
    scope = getattr(value, "namespace", None) or getattr(value, "server_label", None)
    encoded = _encode_canonical(arguments)
    command, folder = _find_command(arguments)
    own = str(name).rsplit("__", 1)[-1].replace("-", "_").lower()
    return CallFacts(
        name=own,
        key=b"" if arguments is None else _encode_canonical([item.type, scope, name, arguments]),
        arguments=encoded.decode(),
        command=command,
        read=_find_read(own, arguments, command, folder),
    )


def _parse(arguments: str) -> Any:
    try:
        return _decode(arguments)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return arguments


def _find_command(arguments: Any) -> tuple[str, str]:
    """The shell command that arguments hold, and the folder that it runs in; empty where there is none."""
    if not isinstance(arguments, dict):
        return "", ""
    folder = next((arguments[key] for key in _FOLDER_KEYS if isinstance(arguments.get(key), str)), "")
    for key in _COMMAND_KEYS:
        found = arguments.get(key)
        if isinstance(found, list) and found and all(isinstance(word, str) for word in found):
            shell = len(found) == 3 and found[0] in _SHELLS and found[1].startswith("-")
            found = (
                found[2] if shell else found[0] if key == "commands" and len(found) == 1 else " ".join(found)
            )
        if isinstance(found, str) and len(found) <= _COMMAND_CHARS:
            return found.strip(), folder
    return "", folder


_PATH: Final = r"""(?P<path>"[^"$`\\]+"|'[^']+'|[^\s|;&<>$`*?(){}'"\\~-][^\s|;&<>$`*?(){}'"\\]*)"""
_LINES: Final = r"""sed -n (?P<q>['"]?)(?P<first>\d+),(?P<last>\d+)p(?P=q)"""
_CD: Final = r"""(?:cd (?P<folder>[^\s|;&<>$`*?(){}'"\\]+) && )?"""
_FILE_COMMANDS: Final = (
    re.compile(rf"{_CD}(?:cat|nl|bat)(?: -\w+)* {_PATH}(?: ?\| ?{_LINES})?"),
    re.compile(rf"{_CD}{_LINES} {_PATH}"),
    re.compile(rf"{_CD}head (?:-n ?)?-?(?P<last>\d+) {_PATH}"),
)


def _find_read(name: str, arguments: Any, command: str, folder: str) -> FileRead | None:
    if not isinstance(arguments, dict):
        return None
    if name in _READ_NAMES or (name in _EDITOR_NAMES and arguments.get("command") == "view"):
        key = next((key for key in _PATH_KEYS if isinstance(arguments.get(key), str)), None)
        if key is None:
            return None
        rest = {
            other: value
            for other, value in arguments.items()
            if other not in (key, "command") and other not in _IDLE_KEYS and value is not None
        }
        return FileRead(_join(arguments[key], ""), _encode_canonical(rest) if rest else None)
    for pattern in _FILE_COMMANDS:
        found = pattern.fullmatch(command)
        if found is not None:
            groups = found.groupdict()
            last = groups.get("last")
            part = None if last is None else (int(groups.get("first") or 1), int(last))
            return FileRead(_join(groups["path"].strip("\"'"), groups["folder"] or folder, folder), part)
    return None


def _join(path: str, *folders: str) -> str:
    """The path from the first of the folders that is absolute, as far as can be told: `("./a", "/w")` -> `/w/a`."""
    for folder in folders:
        if path.startswith("/") or not folder:
            break
        path = f"{folder}/{path}"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def find_mark_key(item: Item) -> str | None:
    """The id by which a client marks a result: its call's, or the item's own where it is both."""
    return get_call_id(item) or getattr(item.value, "id", None)
