"""What the scripted model can do by itself: note, recall, call tools, repeat outputs, fill a schema.

It reads the window and nothing else. Invariant: what it claims to know stands in the window.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from antiphon.backends.interface import Ask
from antiphon.backends.scripted.instances import Source, build_instance
from antiphon.backends.scripted.script import Act, Call
from antiphon.backends.scripted.window import Window
from antiphon.protocol.tools import FunctionTool

UNKNOWN = "I do not know."


class Content(NamedTuple):
    """What an act says."""

    text: str = ""
    calls: tuple[Call, ...] = ()


class Fact(NamedTuple):
    """Something that was told: "the code word is marmalade" -> ("code word", "marmalade")."""

    subject: str
    value: str


_VALUE = r"""(?: ["“'`] (?P<quoted> [^"”'`\n]{1,200} ) ["”'`] | (?P<plain> [\w][\w'’./:@+-]* ) )"""
_SUBJECT_IS = re.compile(
    r"\b (?: my | the | our | your | this | a | another ) \s+ (?P<subject> [\w-]+ (?: \s+ [\w-]+ ){0,4}? )"
    r"\s* (?: \b is \s+ (?: now \s+ | called \s+ )? | \b was \s+ | [=:] \s* ) " + _VALUE,
    re.IGNORECASE | re.VERBOSE,
)
_REMEMBER = re.compile(
    r"\b (?: remember | memori[sz]e | note | keep ) (?: \s+ (?: down | in \s+ mind | this | that | the"
    r" | my | our | following | exactly | for \s+ me | for \s+ later ) )* \s*"
    r"(?P<subject> (?: (?: [\w-]+ \s+ ){0,2} "
    r"(?: word | name | number | phrase | code | colou?r | pin | token ) ) )?"
    r"\s* [:=]? \s* " + _VALUE,
    re.IGNORECASE | re.VERBOSE,
)
_CALL_ME = re.compile(r"\b call \s+ me \s+ " + _VALUE, re.IGNORECASE | re.VERBOSE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_QUESTION = re.compile(
    r"^\s*(?:please\s+|and\s+|now\s+)*(?:what|which|who|repeat|recall|tell|say|answer|reply|do|can|could)\b",
    re.IGNORECASE,
)
_BARE = re.compile(
    r"\b(?:only|just|alone|nothing else|nothing but|exactly|single word|one word)\b", re.IGNORECASE
)
#: Words that follow "is" or "remember" without being what is to be remembered.
_NO_VALUE = frozenset(
    re.findall(
        r"\w+",
        "a all an and as at but can every for from he i if in into it later my never not of on one or our she"
        " so that the them then they this to was we what when where which who will with you your",
    )
)
_ALL = re.compile(r"\b(?:all|every|each|words|names|numbers|codes|phrases)\b", re.IGNORECASE)
#: Questions with one of these ask for whatever was told.
_GENERAL = frozenset({"remember", "word", "told", "said", "earlier", "noted", "memorize", "memorise"})
_WORD = re.compile(r"[\w-]+")


def perform(act: Act, window: Window, ask: Ask) -> Content:
    """Carry out an act on a window."""
    return _ACTS[act](window, ask)


def find_named_tools(window: Window, ask: Ask) -> list[FunctionTool]:
    """The offered tools that the last user text names, in the order of the offer."""
    if ask.tool_choice == "none":
        return []
    text = window.last_user_text()
    return [tool for tool in ask.tools if any(_is_named(name, text) for name in _spoken_names(tool))]


def find_facts(text: str) -> Iterator[Fact]:
    """What a text tells, in order; questions tell nothing."""
    for sentence in _SENTENCE.split(text):
        if sentence.rstrip().endswith("?") or _QUESTION.match(sentence):
            continue
        found = [
            (match.start(), _to_fact(match))
            for pattern in (_SUBJECT_IS, _CALL_ME, _REMEMBER)
            for match in pattern.finditer(sentence)
        ]
        told = [(start, fact) for start, fact in found if fact.value.lower() not in _NO_VALUE]
        if any(fact.subject for _, fact in told):
            told = [(start, fact) for start, fact in told if fact.subject]
        for _, fact in sorted(told):
            yield fact


def _to_fact(match: re.Match[str]) -> Fact:
    value = match["quoted"] or match["plain"].rstrip(".:/'’-")
    subject = match["subject"] if "subject" in match.re.groupindex else "name"
    return Fact(" ".join((subject or "").lower().split()), value)


def _spoken_names(tool: FunctionTool) -> Iterator[str]:
    """A user names a member of a namespace by its own name, too: `mcp__echo__say` is "say"."""
    yield tool.name
    _, separator, own = tool.name.rpartition("__")
    if separator and own:
        yield own


def _is_named(name: str, text: str) -> bool:
    spoken = re.sub(r"[_-]+", "[ _-]", re.escape(name).replace(r"\-", "-"))
    return re.search(rf"(?<![\w-]){spoken}(?![\w-])", text, re.IGNORECASE) is not None


def _recall_facts(window: Window) -> list[Fact]:
    """What the last user text asks for, oldest first."""
    asked = set(map(str.lower, _WORD.findall(window.last_user_text())))
    singular = asked | {word.removesuffix("s") for word in asked}
    facts = [fact for text in window.list_told() for fact in find_facts(text)]
    found = [fact for fact in facts if fact.subject and fact.subject.split()[-1] in singular]
    return found or (facts if singular & _GENERAL else [])


def _recall_fact(window: Window) -> Fact | None:
    """The newest fact that the last user text asks for; None when the window holds none."""
    return next(reversed(_recall_facts(window)), None)


def _note(window: Window, ask: Ask) -> Content:
    facts = list(find_facts(window.last_user_text()))
    if not facts:
        return _describe(window, ask)
    return Content(f"Noted: {', '.join(dict.fromkeys(fact.value for fact in facts))}.")


def _recall(window: Window, ask: Ask) -> Content:
    facts = _recall_facts(window)
    if not facts:
        return Content(UNKNOWN)
    question = window.last_user_text()
    if _ALL.search(question):
        return Content(", ".join(dict.fromkeys(fact.value for fact in facts)))
    newest = facts[-1]
    if not newest.subject or _BARE.search(question):
        return Content(newest.value)
    return Content(f"The {newest.subject} is {newest.value}.")


def _call_tools(window: Window, ask: Ask) -> Content:
    named = find_named_tools(window, ask)
    if ask.forced_tool is not None:
        named = [tool for tool in ask.tools if tool.name == ask.forced_tool]
    tools = named or list(ask.tools[:1])
    if ask.parallel_tool_calls is False:
        tools = tools[:1]
    if not tools:
        return _describe(window, ask)
    text = window.last_user_text()
    for tool in tools:
        # A tool's own name is no argument for it.
        for name in _spoken_names(tool):
            text = re.sub(re.escape(name), " ", text)
    source = Source(text)
    return Content(calls=tuple(Call(name=t.name, arguments=_build_arguments(t, source)) for t in tools))


def _build_arguments(tool: FunctionTool, source: Source) -> dict[str, Any]:
    arguments = build_instance(tool.parameters or {"type": "object"}, source)
    return arguments if isinstance(arguments, dict) else {}


def _repeat_outputs(window: Window, ask: Ask) -> Content:
    told = []
    for output in window.list_new_outputs():
        call = window.find_call(output.call_id)
        told.append(f"{call.name if call else 'The tool'} returned: {output.text or 'nothing'}")
    if not told:
        return _describe(window, ask)
    # The question that led to the call may have told something that belongs into the answer.
    told += [f"The {fact.subject or 'word'} is {fact.value}." for fact in find_facts(window.last_user_text())]
    return Content("\n".join(told))


def _fill_schema(window: Window, ask: Ask) -> Content:
    fact = _recall_fact(window)
    source = Source(window.last_user_text(), fact.value if fact else "")
    schema = ask.text_format.schema if ask.text_format and ask.text_format.type == "json_schema" else None
    value = build_instance(schema, source) if schema else {"answer": fact.value if fact else UNKNOWN}
    return Content(msgspec.json.encode(value).decode())


def _describe(window: Window, ask: Ask) -> Content:
    users = sum(piece.kind == "user" for piece in window.pieces)
    return Content(
        "I am Antiphon's scripted model, a stand-in without intelligence. "
        f"I see {users} user message{'' if users == 1 else 's'} among {len(window.pieces)} entries, "
        f"{window.tokens} tokens in all. Ask me to remember a word, and later what it was."
    )


_ACTS: dict[Act, Callable[[Window, Ask], Content]] = {
    "call_tools": _call_tools,
    "repeat_outputs": _repeat_outputs,
    "fill_schema": _fill_schema,
    "note": _note,
    "recall": _recall,
    "describe": _describe,
}
