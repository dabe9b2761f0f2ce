"""How exact names and numbers are recognised in a text: paths, ids, hashes, error codes, URLs, numbers with units.

By rule alone, for one text. Invariant: the time is linear in its length, whatever it holds: a pattern starts only where
a run of characters does, and looks over a bounded stretch.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from antiphon.context.fact_names import (
    ERRNO_NAMES,
    FILE_EXTENSIONS,
    FILE_NAMES,
    FOLDER_NAMES,
    NO_CODE_PREFIXES,
    SECRET_PREFIXES,
    UNITS,
    UNITS_ATTACHED,
)

FactKind: TypeAlias = Literal["Paths", "Ids", "Hashes", "Errors", "URLs", "Numbers"]

#: A longer run without a break is data, and holds no name.
TOKEN_CHARACTERS: Final = 512
PATH_CHARACTERS: Final = 260
URL_CHARACTERS: Final = 1_024
_WORD_CHARACTERS: Final = 128


class Found(NamedTuple):
    """A fact, and where in its text it stands."""

    kind: FactKind
    text: str
    position: int


def find_facts(text: str) -> Iterator[Found]:
    """The facts of a text, in no particular order; one may come more than once."""
    rest = text
    if "://" in text:
        yield from _find_urls(text)
        rest = _URL.sub(" ", text)
    if "\n+++ " in rest:
        rest = _DIFF_HEAD.sub(" ", rest)
    rest, quoted = _take_quoted_paths(rest)
    yield from quoted
    last = {match[0]: match.start() for match in _TOKEN.finditer(rest)}
    for token, position in last.items():
        if 1 < len(token) <= TOKEN_CHARACTERS:
            yield from _read_token(token, position)
    yield from _find_phrases(rest)
    yield from _find_numbers(rest)


# URLs

_URL = re.compile(r"(?<![A-Za-z0-9+.\-])[A-Za-z][A-Za-z0-9+.\-]{1,15}://[^\s\"'`<>\\^{}|]+")
_AFTER_URL: Final = ".,;:!?*"
_BRACKETS: Final = {")": "(", "]": "["}


def _find_urls(text: str) -> Iterator[Found]:
    for match in _URL.finditer(text):
        url = match[0]
        if len(url) > URL_CHARACTERS:
            continue
        url = url.rstrip(_AFTER_URL)
        while (opening := _BRACKETS.get(url[-1])) and url.count(opening) < url.count(url[-1]):
            url = url[:-1].rstrip(_AFTER_URL)
        if not url.endswith("://"):
            yield Found("URLs", url, match.start())


# Paths

#: A run without a break. A bracket belongs to it only as a part of a path (`app/[id]/page.tsx`); one before or behind
#: it says that it is a tag or a call, and no file.
_TOKEN = re.compile(r"<?(?:[^\s\"'`<>|,;{}()\[\]=*]|(?<=/)[(\[][\w.@\-]{1,40}[)\]](?=[/.]))+\(?")
#: What patches put before a path.
_DIFF_HEAD = re.compile(r"^diff --git [^\n]*$|^(?:---|\+\+\+) [ab]/", re.MULTILINE)
#: A path with spaces, which only quotes hold together.
_QUOTED = re.compile(r"(?<=[\"'`])(?:[A-Za-z]:[\\/]|[/~.])[^\"'`\n<>|;:*?]{1,260}(?=[\"'`])")
#: A space inside a folder's name: the next word begins with a capital or a digit, and the name ends in a slash.
_SPACED = re.compile(r"[^\s\\/]{1,64}(?: [A-Z0-9(][^\s\\/]{0,64}){1,6}")
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_PART = re.compile(r"[\w.@+~%$()\[\]\-]{1,128}")
_WINDOWS_PART = re.compile(r"[\w.@+~%$()\-]{1,128}")
_EXTENSION = re.compile(r"[^.]*\.(?:[\w\-]*\.){0,8}([A-Za-z][A-Za-z0-9]{0,9})")
_LINE = re.compile(r"(?::\d{1,7}){1,2}(?![\w.])|::[\w:]{1,128}")
_ANCHOR = re.compile(r"#L\d{1,7}(?:-L?\d{1,7})?")
_AROUND_RUN: Final = "*:!?#&+"


def _take_quoted_paths(text: str) -> tuple[str, list[Found]]:
    """The text without its paths that have spaces, and those paths."""
    taken: list[Found] = []
    pieces: list[str] = []
    start = 0
    for match in _QUOTED.finditer(text):
        if " " in match[0] and _is_spaced_path(match[0]):
            taken.append(Found("Paths", match[0], match.start()))
            pieces.append(text[start : match.start()])
            start = match.end()
    return ("".join([*pieces, text[start:]]) if taken else text), taken


def _is_spaced_path(path: str) -> bool:
    *folders, name = re.split(r"[\\/]+", path)
    is_windows = _DRIVE.match(path) is not None
    if " " in name and not (is_windows and _find_extension(name) in FILE_EXTENSIONS):
        return False
    return all(" " not in folder or _SPACED.fullmatch(folder) for folder in folders)


def _read_token(token: str, position: int) -> Iterator[Found]:
    is_tag, is_call = token.startswith("<"), token.endswith("(")
    text = token.strip("<(").lstrip(_AROUND_RUN).rstrip(_AROUND_RUN + ".,-")
    if len(text) < 2:
        return
    if not is_call and (path := _find_path(text, is_tag=is_tag)):
        yield Found("Paths", path, position)
        return
    if _HAS_SIGN.search(text):
        for word in _WORD.findall(text):
            if (kind := _name_word(word)) is not None:
                yield Found(kind, word, position)


def _find_path(text: str, *, is_tag: bool) -> str:
    """The path in a run of characters, with its line number: `src/a.py:12:def` -> `src/a.py:12`; empty for none."""
    start = 0
    # A word and a colon may stand before it: `error:src/a.py`.
    for _ in range(2):
        drive = 2 if _DRIVE.match(text, start) else 0
        colon = text.find(":", start + drive)
        end = colon if colon >= 0 else len(text)
        path, anchor, _ = text[start:end].partition("#")
        path = path.partition("?")[0]
        if _is_path(path, is_tag=is_tag):
            if anchor:
                line = _ANCHOR.match(text, start + len(path))
            else:
                line = _LINE.match(text, end)
            return path + (line[0] if line and len(path) == line.start() - start else "")
        if colon < 0:
            break
        start = colon + 1
    return ""


def _is_path(path: str, *, is_tag: bool) -> bool:
    if not 2 <= len(path) <= PATH_CHARACTERS or not any(map(str.isalpha, path)):
        return False
    if "\\" in path or _DRIVE.match(path):
        return _is_windows_path(path)
    if "/" not in path:
        return _is_file_name(path)
    is_absolute = path.startswith(("/", "~/", "./", "../"))
    parts = path.removeprefix("/").removesuffix("/").split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        return False
    if is_absolute:
        # `</div>` is no path, and `/or` hardly one.
        return not is_tag and (len(parts) > 1 or len(parts[0]) > 2)
    return _is_relative_path(path, parts)


def _is_relative_path(path: str, parts: list[str]) -> bool:
    """Words of prose are joined by slashes too: a path has a file's ending, a usual folder, or more than two parts."""
    if _find_extension(parts[-1]) or parts[-1] in FILE_NAMES or parts[0].lower() in FOLDER_NAMES:
        return True
    if path.endswith("/"):
        return len(path) > 3
    if len(parts) == 2:
        return any(sign in parts[1] for sign in "-_0123456789") and parts[0].islower() and parts[1].islower()
    return all(any(map(str.isalpha, part)) for part in parts)


def _is_windows_path(path: str) -> bool:
    plain = path.replace("\\\\", "\\")
    is_shared = path.startswith("\\\\") and plain.count("\\") > 1
    has_drive = _DRIVE.match(plain) is not None
    if has_drive:
        plain = plain[3:]
    parts = [part for part in re.split(r"[\\/]", plain) if part]
    if not parts or not all(_WINDOWS_PART.fullmatch(part) for part in parts):
        return False
    # A backslash stands in escapes too; without a drive it takes a file's ending.
    return has_drive or is_shared or (len(parts) > 1 and _find_extension(parts[-1]) in FILE_EXTENSIONS)


def _is_file_name(name: str) -> bool:
    if name in FILE_NAMES or name.startswith(".env."):
        return True
    stem, dot, _ = name.partition(".")
    if not stem or not dot or not _PART.fullmatch(name) or stem in ("self", "this", "cls"):
        return False
    extension = _find_extension(name)
    # `x.c` is a field as often as a file.
    return extension in FILE_EXTENSIONS and (len(stem) > 1 or len(extension) > 1)


def _find_extension(name: str) -> str:
    match = _EXTENSION.fullmatch(name)
    return match[1].lower() if match else ""


# Words: ids, hashes, error codes

_WORD = re.compile(r"[A-Za-z0-9_\-]+")
_HAS_SIGN = re.compile(r"[0-9A-Z]")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_HEX = re.compile(r"[0-9a-f]{7,128}|[0-9A-F]{7,128}")
_KEY = re.compile(r"[A-Z][A-Z0-9]{0,15}(?:-\d{1,10}){1,2}")
_TAILED = re.compile(r"[A-Za-z][A-Za-z0-9]{0,31}(?:[_\-][A-Za-z0-9]{1,64}){0,8}")
_CODE = re.compile(r"([A-Z]{1,8})(\d{3,6})")
_ERR = re.compile(
    r"(?:ERR|E)_[A-Z0-9_]{2,64}|[A-Z][A-Z0-9_]{0,48}_(?:ERR|ERROR|FAILED|DENIED)(?:_[A-Z0-9_]{1,48})?"
)
_EXCEPTION = re.compile(r"_?[A-Z]\w{2,96}(?:Error|Exception|Warning|Fault|Interrupt|Panic)|SIG[A-Z]{3,6}")


def _name_word(word: str) -> FactKind | None:
    """What kind of fact one word is; None for an ordinary one."""
    if not 4 <= len(word) <= _WORD_CHARACTERS or word.startswith(SECRET_PREFIXES):
        return None
    has_digit = any(map(str.isdigit, word))
    if not has_digit:
        is_error = word in ERRNO_NAMES or _ERR.fullmatch(word) or _EXCEPTION.fullmatch(word)
        return "Errors" if is_error else None
    word = word.strip("-_")
    if _HEX.fullmatch(word):
        return "Hashes" if any(map(str.isalpha, word)) else None
    if _UUID.fullmatch(word) or _ULID.fullmatch(word):
        return "Ids"
    if code := _CODE.fullmatch(word):
        return None if code[1] in NO_CODE_PREFIXES else "Errors"
    if _ERR.fullmatch(word) or _EXCEPTION.fullmatch(word):
        return "Errors"
    if _KEY.fullmatch(word):
        # `UTF-8` and `RFC-9110` are no keys; `HTTP-48113` is one.
        prefix, _, number = word.partition("-")
        return None if prefix in NO_CODE_PREFIXES and len(number) < 5 else "Ids"
    return "Ids" if _is_tailed_id(word) else None


def _is_tailed_id(word: str) -> bool:
    """A prefix, and behind a line what no word is: `call_ab12cd34`, `ord_4711`, `web-7d9f8b6c5d-x2x4z`."""
    if not _TAILED.fullmatch(word):
        return False
    head, _, tail = word.replace("-", "_").rpartition("_")
    digits = sum(map(str.isdigit, tail))
    if not head or not digits:
        return False
    if digits == len(tail):
        return digits > 2
    return (digits > 1 and len(tail) > 3) or len(tail) > 7


# Phrases: what several words say together

_PHRASE = re.compile(
    r"""\b(?:
      (?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _]code)?["']?)[ :=]{1,3}(?P<code>[345]\d\d)
      |(?P<bare>[45]\d\d)(?=\ (?:Bad|Unauthorized|Forbidden|Not|Method|Conflict|Gone|Payload|Unprocessable|Too
        |Internal|Service|Gateway)\b)
      |SQLSTATE[ :=\[]{1,3}(?P<state>[0-9A-Z]{5})
      |(?P<number>errno[ :=]{1,3}-?\d{1,5}
        |exit(?:ed)?(?:\ with)?(?:[ _](?:code|status))?[ :=]{1,3}-?[1-9]\d{0,9}
        |0x[89c][0-9a-f]{7})
      |code["']?[ :=]{1,3}["']?(?P<named>[a-z][a-z0-9]{0,31}(?:_[a-z0-9]{1,31}){1,7})
      |(?P<port>port["']?[ :=]{1,3}\d{2,5})
    )(?!\w)""",
    re.IGNORECASE | re.VERBOSE,
)
_ISSUE = re.compile(
    r"#\d{1,5}(?![\w.])(?<![\w/&]#\d)(?<![\w/&]#\d\d)(?<![\w/&]#\d{3})(?<![\w/&]#\d{4})(?<![\w/&]#\d{5})"
)


def _find_phrases(text: str) -> Iterator[Found]:
    for match in _PHRASE.finditer(text):
        if match["port"]:
            yield Found("Numbers", match["port"], match.start())
            continue
        status, state = match["code"] or match["bare"], match["state"]
        told = (
            f"HTTP {status}"
            if status
            else f"SQLSTATE {state}"
            if state
            else match["named"] or match["number"]
        )
        yield Found("Errors", told, match.start())
    for match in _ISSUE.finditer(text):
        yield Found("Ids", match[0], match.start())


# Numbers with units, versions, hosts with ports

_NUMBER = re.compile(
    r"[0-9](?<![\w.].)[0-9]{0,15}(?:[,_][0-9]{3}){0,5}(?:\.[0-9]{1,9})?"
    rf"(?:[ ]?(?:{UNITS})|(?:{UNITS_ATTACHED}))(?![\w/])"
)
_MONEY = re.compile(r"[$€£][0-9]{1,12}(?:[.,][0-9]{1,9}){0,4}(?!\w)")
_VERSION = re.compile(
    r"v[0-9](?<![\w.\-/]..)[0-9]{0,4}(?:\.[0-9]{1,6}){1,3}(?:[.\-+][0-9A-Za-z]{1,16}){0,4}(?!\w)"
    r"|[0-9](?<![\w.\-/@].)(?<!==.)[0-9]{0,5}(?:\.[0-9]{1,6}){2,3}(?:[\-+][0-9A-Za-z.]{1,24})?(?!\.?[\w:])"
)
_PINNED = re.compile(
    r"(?<![\w.\-/@])[@A-Za-z][\w.\-/]{0,64}(?:==|@)[v^~]?[0-9]{1,6}(?:\.[0-9A-Za-z\-+]{1,16}){1,4}(?!\w)"
)
_HOST = re.compile(
    r"(?<![\w.\-])(?:[A-Za-z0-9][A-Za-z0-9\-]{0,62}(?:\.[A-Za-z0-9][A-Za-z0-9\-]{0,62}){0,6}|\[[0-9a-f:]{2,40}\])"
    r":([0-9]{2,5})(?![\w.:])"
)


def _find_numbers(text: str) -> Iterator[Found]:
    for pattern in (_NUMBER, _MONEY, _VERSION, _PINNED):
        for match in pattern.finditer(text):
            yield Found("Numbers", match[0].rstrip("."), match.start())
    for match in _HOST.finditer(text):
        if _is_host(match[0].rpartition(":")[0], match[1]):
            yield Found("Numbers", match[0], match.start())


def _is_host(host: str, port: str) -> bool:
    """`localhost:8080`, `db:5432`, `10.0.0.7:443`; neither `a.py:12` nor `12:30`."""
    if host.startswith("["):
        return True
    last = host.rpartition(".")[2]
    if "." not in host:
        return host == "localhost" or (host[0].isalpha() and host.islower() and len(port) > 3)
    if last.isdigit():
        return host.count(".") == 3
    return last.islower() and last.isalpha() and last not in FILE_EXTENSIONS
