"""A process that holds texts against grammars, so that no grammar can stop the server.

Run as a script, it reads one JSON object a line and answers with one a line; it knows nothing of Antiphon.
Whoever started it ends it when it takes too long. Invariant: it answers every line, or it is gone.
"""

import json
import re
import signal
import sys
from collections import OrderedDict
from contextlib import suppress
from typing import Any

READY = b'"ready"\n'
#: Address space of the process; a grammar that needs more is not checked.
MEMORY_BYTES = 1024 * 1024 * 1024
#: Grammars kept ready.
COMPILED_KEPT = 16
#: The longest reason.
REASON_CHARACTERS = 600
#: What of a grammar may come from elsewhere: lark's own collections.
_IMPORTS = ("common", "unicode", "python", "lark")
_IMPORT = re.compile(r"^\s*%import\s+\(?\s*([\w.]+)", re.MULTILINE)
_DECLARE = re.compile(r"^\s*%declare\b", re.MULTILINE)
_LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"i?|/(?!/)(?:\\.|[^/\\\n])+/[imslux]*|//[^\n]*')
_TERMINAL_LINE = re.compile(r"^\s*[_!?]*[A-Z][A-Z0-9_]*(?:\.-?\d+)?\s*:")
_RULE_LINE = re.compile(r"^\s*[_!?]*[a-z][a-z0-9_]*(?:\{[^}]*\})?(?:\.-?\d+)?\s*:")


class NotCheckableError(Exception):
    """The grammar may be right, but this checker cannot work with it."""


def main() -> None:
    """Answer lines until there are no more."""
    limit_memory()
    import lark  # noqa: F401 - loaded before the first line comes, so that no time limit counts it
    import regex  # noqa: F401

    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        told = json.loads(line)
        arm(int(told["seconds"]) + 5)
        answer = check(told)
        arm(0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def limit_memory() -> None:
    """Where the system can."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    except (OSError, ValueError):
        return


def arm(seconds: int) -> None:
    """End this process when whoever started it is not there to do so; 0 calls it off."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def check(told: dict[str, Any]) -> dict[str, str]:
    """`{"invalid": ...}`, `{"unchecked": ...}`, `{"fault": ...}`, or {} when all is well."""
    find_fault = {"lark": find_lark_fault, "regex": find_regex_fault}[told["syntax"]]
    try:
        return find_fault(told["definition"], told.get("text"))
    except NotCheckableError as reason:
        return {"unchecked": str(reason)[:REASON_CHARACTERS]}
    except (RecursionError, MemoryError):
        _parsers.clear()
        return {"unchecked": "it needs too much memory"}
    except Exception as error:  # noqa: BLE001 - libraries fail in ways of their own; whoever asks wants an answer
        _parsers.clear()
        text = f"the checker failed at it ({type(error).__name__}: {error})"[:REASON_CHARACTERS]
        return {"invalid" if told.get("text") is None else "unchecked": text}


# Regular expressions.


def find_regex_fault(definition: str, text: str | None) -> dict[str, str]:
    """The whole text must match."""
    import regex

    try:
        pattern = regex.compile(definition)
    except regex.error as error:
        return {"invalid": f"it is no regular expression: {error}"[:REASON_CHARACTERS]}
    if text is None or pattern.fullmatch(text) is not None:
        return {}
    # Every beginning of a text that could go on matches partially; the longest such one shows the place.
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if pattern.fullmatch(text[:middle], partial=True) is not None:
            low = middle
        else:
            high = middle - 1
    if low == len(text):
        return {"fault": f"it ends too early ({describe_place(text, low)})"}
    return {"fault": f"{describe_place(text, low)}: {quote(text[low:])} does not match"}


# Lark grammars.

_parsers: OrderedDict[str, list[Any]] = OrderedDict()


def find_lark_fault(definition: str, text: str | None) -> dict[str, str]:
    """The text must be derived from `start`."""
    import lark
    import regex

    for source in _IMPORT.findall(definition):
        if source.split(".")[0] not in _IMPORTS:
            return {"invalid": f"it imports {source[:80]}; only {', '.join(_IMPORTS)} can be imported"}
    if _DECLARE.search(definition):
        return {"invalid": "it has %declare, which names terminals that nothing defines; define them instead"}
    try:
        parsers = get_parsers(definition)
    except (lark.exceptions.LarkError, regex.error, re.error) as error:
        # Lark shows the place in lines of their own; an error of ours is one line.
        told = " ".join(str(error).split())
        return {"invalid": f"it is no Lark grammar: {told}"[:REASON_CHARACTERS]}
    if text is None:
        return {}
    fault = ""
    for parser in parsers:
        try:
            parser.parse(text)
        except lark.exceptions.UnexpectedInput as error:
            fault = describe_lark_fault(error, text, parser)
        except lark.exceptions.LarkError as error:
            fault = str(error)[:REASON_CHARACTERS]
        else:
            return {}
    return {"fault": fault}


def get_parsers(definition: str) -> list[Any]:
    """The quick parser, where the grammar has one, then the one that decides.

    What the quick one derives is derived; what it cannot derive, Earley may.
    """
    import lark

    parsers = _parsers.get(definition)
    if parsers is None:
        decisive, usable = build_earley(definition)
        parsers = [decisive]
        with suppress(lark.exceptions.LarkError, AssertionError):
            parsers.insert(0, lark.Lark(usable, start="start", parser="lalr", regex=True))
        _parsers[definition] = parsers
    _parsers.move_to_end(definition)
    while len(_parsers) > COMPILED_KEPT:
        _parsers.popitem(last=False)
    return parsers


def build_earley(definition: str) -> tuple[Any, str]:
    """The parser, and the definition that it could use."""
    import lark

    for usable in (definition, require_width(definition)):
        try:
            return lark.Lark(usable, start="start", parser="earley", regex=True), usable
        except lark.exceptions.LarkError as error:
            if "zero-width" not in str(error):
                raise
    raise NotCheckableError("one of its terminals can be empty")


def require_width(definition: str) -> str:
    """The same language with expressions that cannot be empty: in a rule `/(.*)/` becomes `(/(.+)/)?`.

    Earley works with terminals that have a width alone.
    """
    lines = []
    in_rule = False
    for line in definition.split("\n"):
        if _TERMINAL_LINE.match(line):
            in_rule = False
        elif _RULE_LINE.match(line):
            in_rule = True
        lines.append(_LITERAL.sub(_require_literal_width, line) if in_rule else line)
    return "\n".join(lines)


def _require_literal_width(match: re.Match[str]) -> str:
    literal = match[0]
    if not literal.startswith("/") or literal.startswith("//"):
        return literal
    body, _, flags = literal[1:].rpartition("/")
    wider = require_pattern_width(body)
    return literal if wider is None else f"((/{wider}/{flags})?)"


def require_pattern_width(pattern: str) -> str | None:
    """`(.*)` -> `(.+)`; None where the pattern is no single repetition."""
    bare = pattern
    closing = ""
    while bare.endswith(")") and not bare.endswith("\\)"):
        bare, closing = bare[:-1], closing + ")"
    for ending, wider in (("*?", "+?"), ("*+", "++"), ("*", "+"), ("?", "")):
        if bare.endswith(ending) and not bare.endswith("\\" + ending):
            candidate = bare[: -len(ending)] + wider + closing
            return candidate if _is_single_repetition(pattern) and _has_width(candidate) else None
    return None


def _is_single_repetition(pattern: str) -> bool:
    from re import _parser as parser

    try:
        tree = parser.parse(pattern)
    except re.error:
        return False
    while len(tree) == 1 and str(tree[0][0]) == "SUBPATTERN":
        tree = tree[0][1][-1]
    return len(tree) == 1 and str(tree[0][0]) in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")


def _has_width(pattern: str) -> bool:
    from re import _parser as parser

    try:
        return bool(parser.parse(pattern).getwidth()[0] > 0)
    except re.error:
        return False


def describe_lark_fault(error: Any, text: str, parser: Any) -> str:
    """Where it goes wrong, and what could have stood there."""
    at = getattr(error, "pos_in_stream", None)
    expected = getattr(error, "allowed", None) or getattr(error, "expected", None) or ()
    # Terminals without a name of their own are told by what they match.
    patterns = {terminal.name: str(terminal.pattern.value) for terminal in parser.terminals}
    told = {quote(patterns[name]) if name in patterns else str(name) for name in map(str, expected)}
    wanted = ", ".join(sorted(told)[:8])
    could = f"; one of these was expected: {wanted}" if wanted else ""
    if not isinstance(at, int) or at < 0 or at >= len(text):
        return f"it ends too early ({describe_place(text, len(text))}){could}"[:REASON_CHARACTERS]
    return f"{describe_place(text, at)}: {quote(text[at:])} does not fit{could}"[:REASON_CHARACTERS]


def describe_place(text: str, at: int) -> str:
    """Counted from 1: "line 2, column 5"."""
    before = text[:at]
    return f"line {before.count(chr(10)) + 1}, column {at - before.rfind(chr(10))}"


def quote(text: str) -> str:
    """The beginning of what is left."""
    return json.dumps(text[:40], ensure_ascii=False)


if __name__ == "__main__":
    main()
