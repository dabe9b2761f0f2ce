"""What a summariser answered, in whatever form it did: prose, a JSON object, a call -> a summary and the items to keep.

It knows nothing of what was asked beyond the form. Invariant: an answer gives either a text that is not blank, or a
fault that says, in words for the model, why it cannot be used.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from antiphon.context.summary_texts import CREATE_SUMMARY_NAME, RETAIN_KEY, SECTIONS, SUMMARY_KEY

#: No text has more bytes to a token than this on the whole: an answer that has is over its limit.
BYTES_PER_TOKEN_MAX: Final = 5
#: A shorter text is no summary of anything.
ANSWER_CHARACTERS_MIN: Final = 16
#: What an answer that was cut must have said to be of use, in characters.
CUT_ANSWER_CHARACTERS: Final = 200
#: How deep an object's values are told as lists.
_DEPTH_MAX: Final = 4
#: How many places are tried to close an object that was cut.
_CLOSINGS_MAX: Final = 12

#: What an object's keys and ids may take beside its text.
_FORM_CHARACTERS: Final = 8_192
#: How deep an object is that was cut.
_OPEN_MAX: Final = 64
#: A shorter sentence may well be said twice.
_REPEAT_CHARACTERS: Final = 20
#: Of a text, what may be words of the demands.
_ECHO_SHARE: Final = 0.6
_ECHO: Final = "it repeated what was asked for instead of telling what happened"
_TOO_LONG: Final = "it was longer than allowed; be shorter"
_NO_SUMMARY: Final = "it called a tool instead of giving a summary"

_HEADINGS: Final = {name: heading for name, heading, _ in SECTIONS}
_KNOWN_KEYS: Final = frozenset({*_HEADINGS, SUMMARY_KEY})
_THINKING: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_FENCED: Final = re.compile(r"```(?:json|JSON)?[ \t]*\n?(\{.*?)(?:\n?```|\Z)", re.DOTALL)
_CALL_TEXT: Final = re.compile(r"\A<\|?(?:tool_call|function_call|tool_calls)", re.IGNORECASE)
_RETAIN_LINE: Final = re.compile(
    r"\A[\s>*_#`-]*retain(?:ed)?(?:[ _]items?)?(?:[ _]ids?)?[*_`]*\s*:(.*)\Z", re.IGNORECASE
)
_REFERENCE: Final = re.compile(r"[#\w.-]+")
_SENTENCE: Final = re.compile(r".*?(?:\n|[.!?]\s|\Z)", re.DOTALL)
_LAST_STOP: Final = re.compile(r".*(?:\n|[.!?](?=\s))", re.DOTALL)


class SummaryAnswer(msgspec.Struct, frozen=True):
    """What the model said: its text, and the arguments of its call where it made one."""

    text: str
    call_arguments: str | None = None
    finish: Literal["stop", "length", "content_filter"] = "stop"


class ReadAnswer(msgspec.Struct, frozen=True):
    """The summary in an answer and the items that it names, as it names them; `fault`: why it cannot be used."""

    text: str = ""
    references: tuple[str, ...] = ()
    fault: str = ""
    #: Whether the model was stopped before its end.
    is_cut: bool = False


def read_answer(
    answer: SummaryAnswer, *, asked_call: bool, allowed_tokens: int, demands: str = ""
) -> ReadAnswer:
    """Read an answer to `demands`.

    `asked_call`: a call is one of `create_summary`; otherwise it is a call of something else.
    """
    is_cut = answer.finish != "stop"
    # As JSON a text may be longer, but nothing that long can be one that is short enough.
    if (
        len(answer.call_arguments or answer.text)
        > allowed_tokens * BYTES_PER_TOKEN_MAX * 2 + _FORM_CHARACTERS
    ):
        return ReadAnswer(fault=_TOO_LONG)
    if answer.call_arguments is not None:
        found = _read_object(answer.call_arguments) if asked_call else None
        if found is None or not _KNOWN_KEYS & found.keys():
            return ReadAnswer(fault=_NO_SUMMARY)
        read = _tell_object(found)
    else:
        read = _read_text(answer.text, is_cut=is_cut)
    judged = _judge(read, is_cut=is_cut, allowed_tokens=allowed_tokens)
    return ReadAnswer(fault=_ECHO) if _is_echo(judged.text, demands) else judged


def _judge(read: ReadAnswer, *, is_cut: bool, allowed_tokens: int) -> ReadAnswer:
    if read.fault:
        return read
    text = _clean(_drop_repeats(read.text) if is_cut else read.text)
    if not text:
        return ReadAnswer(fault="it was empty")
    if is_cut and len(text) < CUT_ANSWER_CHARACTERS:
        return ReadAnswer(fault="it broke off before it said anything of use; be shorter")
    if len(text) < ANSWER_CHARACTERS_MIN or _REFUSAL.match(text):
        return ReadAnswer(fault="it told nothing of the conversation")
    if len(text.encode()) > allowed_tokens * BYTES_PER_TOKEN_MAX:
        return ReadAnswer(fault=_TOO_LONG)
    return ReadAnswer(text, read.references, is_cut=is_cut)


#: How models begin that do not want to answer.
_REFUSAL: Final = re.compile(
    r"\s*(?:unfortunately,? )?(?:sorry,|i apologi[sz]e|as an ai\b|i(?:['\u2019]?m| am) (?:sorry|afraid|unable)"
    r"|i (?:can['\u2019]t|can ?not|won['\u2019]t|don['\u2019]t have|do not have)\b)",
    re.IGNORECASE,
)


def _is_echo(text: str, demands: str) -> bool:
    """Whether most of a text is the demands over again, as small models answer."""
    asked = _flatten(demands)
    lines = [_flatten(line.strip(" \t#*->")) for line in text.splitlines()]
    echoed = sum(len(line) for line in lines if len(line) >= _REPEAT_CHARACTERS and line in asked)
    return echoed > _ECHO_SHARE * sum(len(line) for line in lines)


def _flatten(text: str) -> str:
    return " ".join(text.lower().split())


def _drop_repeats(text: str) -> str:
    """The text with each sentence once: a model that says one over and over says nothing else up to its limit."""
    said: set[str] = set()
    told = []
    for sentence in _SENTENCE.findall(text):
        words = sentence.strip(" \t\n-*")
        if len(words) < _REPEAT_CHARACTERS or words not in said:
            told.append(sentence)
        said.add(words)
    return "".join(told)


def _clean(text: str) -> str:
    """The text without half characters, which a JSON escape can name and no encoding can hold."""
    return text.encode("utf-8", "replace").decode().strip()


# Text


def _read_text(text: str, *, is_cut: bool) -> ReadAnswer:
    told = _THINKING.sub("", text).strip()
    if _CALL_TEXT.match(told):
        return ReadAnswer(fault=_NO_SUMMARY)
    found = _find_object(told)
    if found is not None:
        found = _open_call_text(found)
        if found is None:
            return ReadAnswer(fault=_NO_SUMMARY)
        return _tell_object(found)
    if told.startswith("{") and not told.strip('{}[] \t\r\n",'):
        return ReadAnswer(fault="it was empty")
    return _read_prose(told, is_cut=is_cut)


def _open_call_text(found: dict[str, Any]) -> dict[str, Any] | None:
    """The summary in a call that was written as text; None for a call of something else."""
    if _KNOWN_KEYS & found.keys() or "name" not in found:
        return found
    arguments = found.get("arguments", found.get("parameters"))
    if arguments is None:
        return found
    if isinstance(arguments, str):
        arguments = _read_object(arguments)
    return arguments if found["name"] == CREATE_SUMMARY_NAME and isinstance(arguments, dict) else None


def _read_prose(told: str, *, is_cut: bool) -> ReadAnswer:
    told = _unwrap(told)
    lines = told.rstrip().split("\n")
    for at in dict.fromkeys([*range(len(lines) - 1, max(len(lines) - 4, -1), -1), 0]):
        named = _RETAIN_LINE.match(lines[at])
        if named is None:
            continue
        rest = "\n".join(lines[:at] + lines[at + 1 :])
        references = _list_references(named[1])
        if all(any(character.isdigit() for character in each) for each in references):
            return ReadAnswer(rest, references)
        # The word was taken for a heading.
        told = "\n".join([*lines[:at], named[1].strip(), *lines[at + 1 :]])
    if is_cut:
        whole = _LAST_STOP.match(told)
        if whole is not None and len(whole[0]) >= len(told) // 2:
            told = whole[0]
    return ReadAnswer(told)


def _unwrap(told: str) -> str:
    """The text inside of the one code fence that is all of it."""
    opening, _, inner = told.partition("\n")
    if not opening.startswith("```"):
        return told
    inner = inner.rstrip().removesuffix("```")
    return told if "```" in inner or not inner.strip() else inner


# Objects


def _find_object(told: str) -> dict[str, Any] | None:
    """The object that an answer is or holds in a code fence; a fence with any other object is part of the prose."""
    if told.startswith("{"):
        return _read_object(told)
    for fenced in _FENCED.finditer(told):
        found = _read_object(fenced[1])
        if found is not None and _KNOWN_KEYS & found.keys():
            return found
    return None


def _read_object(text: str) -> dict[str, Any] | None:
    """The object at the start of a text, closed where it was cut."""
    for closed in _iter_closings(text.strip()):
        try:
            found, _ = _DECODER.raw_decode(closed)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return {_normalise_key(key): value for key, value in found.items()}
        return None
    return None


#: Lenient with the line ends that models write inside of strings.
_DECODER: Final = json.JSONDecoder(strict=False)


def _iter_closings(text: str) -> Iterator[str]:
    """The text, then what of it comes before its last values, with the brackets closed that stand open there."""
    yield text
    closers: list[str] = []
    #: Where a value ended, and what would have to be closed there.
    stops: list[tuple[int, str]] = []
    in_string = escaped = False
    for at, character in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "{[":
            closers.append("}" if character == "{" else "]")
            if len(closers) > _OPEN_MAX:
                return
            stops.append((at + 1, "".join(reversed(closers))))
        elif character in "}]" and closers:
            closers.pop()
            stops.append((at + 1, "".join(reversed(closers))))
        elif character == ",":
            stops.append((at, "".join(reversed(closers))))
    ending = "".join(reversed(closers))
    if in_string:
        # An escape that was cut has at most six characters.
        open_text = re.sub(r"\\(?:u[0-9a-fA-F]{0,3})?\Z", "", text) if escaped or "\\u" in text[-6:] else text
        yield f'{open_text}"{ending}'
    else:
        yield f"{text}{ending}"
    for stop, closing in list(reversed(stops))[:_CLOSINGS_MAX]:
        yield f"{text[:stop]}{closing}"


def _normalise_key(key: str) -> str:
    return re.sub(r"[\s-]+", "_", key.strip()).lower()


def _tell_object(found: dict[str, Any]) -> ReadAnswer:
    """An object as a summary: each section under its heading, a summary in prose before them."""
    references: tuple[str, ...] = ()
    sections: dict[str, str] = {}
    for key, value in found.items():
        if key == RETAIN_KEY:
            references = _list_references(value)
        elif isinstance(value, dict) and key == SUMMARY_KEY:
            inner = _tell_object({_normalise_key(str(name)): each for name, each in value.items()})
            sections[key] = inner.text
        else:
            sections[key] = _tell_value(value)
    known = [SUMMARY_KEY, *_HEADINGS]
    order = [key for key in known if key in sections] + [key for key in sections if key not in known]
    told = [
        sections[key] if key == SUMMARY_KEY else f"## {_name_heading(key)}\n{sections[key]}"
        for key in order
        if sections[key].strip()
    ]
    return ReadAnswer("\n\n".join(told), references)


def _name_heading(key: str) -> str:
    return _HEADINGS.get(key) or key.replace("_", " ").capitalize()


def _tell_value(value: Any, depth: int = 0) -> str:
    """A value as text: lists and objects as lines, `["a", {"b": 1}]` -> `- a`, `- b: 1`."""
    if value is None or value is False:
        return ""
    if isinstance(value, str):
        return value.strip()
    if depth >= _DEPTH_MAX or not isinstance(value, dict | list):
        return _tell_deep(value)
    if isinstance(value, dict):
        pairs = ((key, _tell_value(each, depth + 1)) for key, each in value.items())
        told = [f"{key}: {each}" for key, each in pairs if each]
        return "\n".join(told) if depth == 0 else "; ".join(told)
    inner = (_tell_value(each, depth + 1) for each in value)
    if depth == 0:
        return "\n".join(f"- {each}" for each in inner if each)
    return ", ".join(each for each in inner if each)


def _tell_deep(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""


def _list_references(value: Any) -> tuple[str, ...]:
    """The ids in a list, or in a text: `"#1, #2"` -> `("#1", "#2")`."""
    if isinstance(value, list):
        return tuple(dict.fromkeys(str(each).strip() for each in value if isinstance(each, str | int)))
    if not isinstance(value, str):
        return ()
    named = dict.fromkeys(each.strip("-.") for each in _REFERENCE.findall(value))
    return tuple(
        each for each in named if each and each.lower() not in {"none", "and", "n", "a", "item", "items"}
    )
