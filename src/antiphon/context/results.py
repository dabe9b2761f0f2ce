"""What the result of a call says: whether it failed, and whether it tells anything at all.

Reads the words of tools that we know (Codex's framing, shells, searches, JSON results) and guesses nothing from others.
It changes no item. Invariant: where an outcome is in doubt, a result tells something and is not a repetition.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.context.call_facts import UNKNOWN_CALL, CallFacts
from antiphon.protocol.items import Item, UnknownItem

#: The types of items that hold the result of a call, and the field that holds it.
RESULT_FIELDS: Final[dict[str, str]] = {
    "apply_patch_call_output": "output",
    "code_interpreter_call": "outputs",
    "custom_tool_call_output": "output",
    "file_search_call": "results",
    "function_call_output": "output",
    "local_shell_call_output": "output",
    "mcp_call": "output",
    "program_output": "result",
    "shell_call_output": "output",
    "web_search_call": "results",
}
#: Types whose items are call and result in one.
SELF_ANSWERED: Final = frozenset({"code_interpreter_call", "file_search_call", "mcp_call", "web_search_call"})
#: A longer result is never taken for one that tells nothing.
BRIEF_CHARS: Final = 600
#: Of a long result this much of each end is searched for words of failure.
END_CHARS: Final = 400
#: A longer text is not read as JSON.
JSON_CHARS: Final = 1 << 20

_TEXT_KEYS: Final = ("title", "url", "snippet", "text", "logs", "stdout", "stderr")
_IMAGE_TYPES: Final = frozenset({"input_image", "image", "computer_screenshot"})

_decode = msgspec.json.Decoder().decode
decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call. `others`: how many images and files it holds; `is_broken`: an error or a failed status."""

    texts: tuple[str, ...]
    others: int = 0
    exit_codes: tuple[int, ...] = ()
    is_broken: bool = False

    @property
    def text(self) -> str:
        """All texts as one."""
        return "\n".join(self.texts)


def read_result(item: Item) -> CallResult | None:
    """The result that an item holds; None where it holds none (yet)."""
    name = RESULT_FIELDS.get(item.type)
    if name is None or isinstance(item.value, UnknownItem):
        return None
    try:
        fields = decode_fields(item.raw)
        value = _decode(fields[name]) if name in fields else None
        error = _decode(fields["error"]) if "error" in fields else None
    except (msgspec.MsgspecError, RecursionError):
        return None
    if value is None and error is None:
        return None
    broken = error is not None or getattr(item.value, "status", None) in ("failed", "incomplete")
    members = value if isinstance(value, list) else [] if value is None else [value]
    texts: list[str] = [] if error is None else [tell_error(error)]
    codes: list[int] = []
    others = 0
    for member in members:
        if isinstance(member, str):
            texts.append(member)
            continue
        if not isinstance(member, dict):
            others += 1
            continue
        told = [] if str(member.get("type")) in _IMAGE_TYPES else _list_texts(member)
        texts += told
        others += not told
        broken = broken or _read_outcome(member.get("outcome"), codes)
    return CallResult(tuple(texts), others, tuple(codes), broken)


def _list_texts(member: Mapping[str, Any]) -> list[str]:
    """The texts of one part, hit or command of a result."""
    return [member[key] for key in _TEXT_KEYS if isinstance(member.get(key), str)]


def tell_error(error: Any) -> str:
    """The words of an error: a text, or an object with a `message`."""
    if isinstance(error, str):
        return error
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else msgspec.json.encode(error).decode()


def _read_outcome(outcome: Any, codes: list[int]) -> bool:
    """Note the exit code of a shell's command; gives whether it was stopped because its time was up."""
    if not isinstance(outcome, dict):
        return False
    code = outcome.get("exit_code")
    if isinstance(code, int):
        codes.append(code)
    return outcome.get("type") == "timeout"


# What a result says


class _Told(msgspec.Struct):
    """A text without the lines that a tool's runner puts around it."""

    body: str
    exit_code: int | None = None
    session: str | None = None
    failed: bool = False


_HEADER: Final = re.compile(
    r"(?:Chunk ID: .*|Wall time:? .*|Duration: .*|Original token count: .*|Total output lines: .*"
    r"|(?:Process exited with code|Exit code:?) (?P<code>-?\d+)"
    r"|(?:Process running with session ID|Script running with cell ID) (?P<session>\S+)"
    r"|Script (?:completed|(?P<failed>failed)))\s*"
)
_FOOTER: Final = re.compile(
    r"\W*(?:command |process )?(?:exit(?:ed)?(?: with)?(?: code| status)?|return ?code)\W{1,3}(?P<code>-?\d+)\W*",
    re.IGNORECASE,
)
_HEADER_LINES: Final = 10
#: How a line begins or what it holds that tells a failure.
_FAILURE_FORMS: Final = (
    r"^\W*(?:\w+:\s+)?(?:error|fatal|fail(?:ed|ure|s)?|exception|traceback|panic(?:ked)?|abort(?:ed)?|denied)\b",
    r"^\W*(?:\w+:\s+)?(?:refused|killed|cannot|can't|could not|couldn't|unable|invalid|unknown|unsupported)\b",
    r"^\W*(?:interrupted\b|[\w.]+(?:error|exception)\b|\w*error\[|npm ERR!)",
    r"no such file|not found$|permission denied|command not found|is not recognized|timed out|does not exist",
    r"aborted by user|segmentation fault|core dumped|\b[1-9]\d* (?:failed|errors?)\b|\bbuild failed",
)
_FAILURE: Final = re.compile("|".join(_FAILURE_FORMS), re.IGNORECASE)
_NONE: Final = (
    r"(?:no|0|zero) (?:(?:more|relevant|matching|search) )?(?:match(?:es)?|results?|files?|hits?|entries|"
    r"occurrences?|items?|documents?|records?|symbols?|references?|output|content)"
)
_ENDING: Final = r"(?:\s+(?:for|in|matching|matched|with|under|at|of|across|to)\b[^\n]{0,300})?\s*[.!]?"
_RAN: Final = r"(?:the )?(?:tool|command|process) (?:ran|completed|executed|finished)(?: successfully)?[,;]?"
_NOTHING_FORMS: Final = (
    rf"{_NONE}(?: (?:were|was))?(?: (?:found|returned|available|produced|match(?:ed)?))?{_ENDING}",
    rf"(?:(?:the |your )?(?:search|query) )?(?:found|returned|yielded|produced|had) {_NONE}{_ENDING}",
    rf"nothing (?:was )?found{_ENDING}",
    rf"{_RAN} (?:without|with no|but produced no) (?:any )?output(?: or errors)?\.?",
    "empty|none|null",
)
_NOTHING: Final = re.compile(
    rf"(?:<\w+>\s*)?[\[(]?\s*(?:{'|'.join(_NOTHING_FORMS)})\s*[\])]?(?:\s*</\w+>)?", re.IGNORECASE
)
_RUNNER: Final = r"(?:process|command|session|task|job|agent|cell|script|shell|it)\b"
_STILL_RUNNING: Final = re.compile(
    rf"[\[(<]?(?:the )?(?:{_RUNNER}(?: \S{{1,40}})? (?:is )?)?still running\b[^\n]{{0,100}}"
    r"|[\[(]?no new (?:output|messages?|events?|lines?)(?: yet| so far)?\.?[\])]?",
    re.IGNORECASE,
)
_WAITED: Final = re.compile(
    r"[\[(]?(?:(?:the )?(?:(?:wait|poll)(?:ing)? )?(?:has )?timed out|time-?out(?: (?:reached|expired|elapsed))?)"
    r"(?: (?:while )?(?:waiting|after|for)\b[^\n]{0,100})?\.?[\])]?",
    re.IGNORECASE,
)
_SEARCH: Final = re.compile(
    r"(?:^|\|)\s*(?:cd \S+ && )?(?:rg|grep|egrep|fgrep|zgrep|ag|ack|pgrep|fd|fdfind|find|locate|git (?:-\S+ )*grep)\b"
)
_SEARCH_NAMES: Final = re.compile(r"grep|glob|search|find|(?:^|_)rg$")
_CHAINED: Final = re.compile(r"&&|;|\|\||\$\(|`|\n")


def is_failed(result: CallResult, call: CallFacts = UNKNOWN_CALL) -> bool:
    """Whether a result tells an error or a failure; a search that ends with code 1 and no output does not."""
    if result.is_broken:
        return True
    told = _read_told(result.text)
    codes = [*result.exit_codes, *(() if told.exit_code is None else (told.exit_code,))]
    if told.failed or any(codes):
        return told.failed or not _is_without_match(codes, told.body, call)
    value = _parse_object(told.body)
    if isinstance(value, dict):
        return _tells_error(value, call)
    return not codes and _reads_as_failure(told.body, call)


def tells_nothing(result: CallResult, call: CallFacts = UNKNOWN_CALL) -> bool:
    """Whether a result is empty, of a search without matches, or of a wait that brought nothing; never a failure."""
    text = result.text
    if result.others or len(text) > BRIEF_CHARS or is_failed(result, call):
        return False
    told = _read_told(text)
    if told.session is not None and told.session not in call.arguments:
        # Here the id of a session is told for the first time.
        return False
    value = _parse_object(told.body)
    if value is not None:
        return _holds_nothing(value)
    body = told.body.strip()
    if _finds_nothing(body) or _STILL_RUNNING.fullmatch(body):
        return True
    return call.is_poll and _WAITED.fullmatch(body) is not None


def is_running(result: CallResult) -> bool:
    """Whether the call goes on, and this is what it has given so far."""
    return _read_told(result.text).session is not None


def is_shortened(result: CallResult) -> bool:
    """Whether a tool says that it did not give all of its output."""
    return "truncated" in result.text


def _is_without_match(codes: Sequence[int], body: str, call: CallFacts) -> bool:
    """How searches say in a shell that they found nothing."""
    return list(codes) == [1] and _finds_nothing(body) and _is_search(call)


def _finds_nothing(body: str) -> bool:
    body = body.strip()
    return not body or _NOTHING.fullmatch(body) is not None


def _reads_as_failure(body: str, call: CallFacts) -> bool:
    if _finds_nothing(body) or (call.is_poll and _WAITED.fullmatch(body.strip())):
        return False
    ends = (body[:END_CHARS], body[-END_CHARS:])
    return any(_FAILURE.search(line) for end in ends for line in _edge_lines(end))


def _is_search(call: CallFacts) -> bool:
    if call.command:
        command = re.sub(r"^cd \S+ && ", "", call.command)
        return bool(_SEARCH.search(command)) and not _CHAINED.search(command)
    return bool(_SEARCH_NAMES.search(call.name))


def _edge_lines(text: str) -> list[str]:
    """The first and the last two lines of a text that say something."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [*lines[:1], *lines[1:][-2:]]


def _read_told(text: str) -> _Told:
    """Take off what a runner wrote over and under an output: ids, times, exit code."""
    told = _Told(text)
    rest = text
    for _ in range(_HEADER_LINES):
        line, _, after = rest.partition("\n")
        if line.strip() == "Output:":
            rest = after
            break
        found = _HEADER.fullmatch(line)
        if found is None:
            break
        told.exit_code = int(found["code"]) if found["code"] else told.exit_code
        told.session = found["session"] or told.session
        told.failed = told.failed or bool(found["failed"])
        rest = after
    told.body = rest
    before, _, last = rest.rstrip().rpartition("\n")
    footer = _FOOTER.fullmatch(last) if len(last) <= 80 else None
    if footer is not None and told.exit_code is None:
        told.body, told.exit_code = before, int(footer["code"])
    return told


# Results as JSON

_EMPTY_COUNTS: Final = re.compile(
    r"(?:^|_)(?:count|total|matches|results|hits|found|num|number|size|length)(?:_|$)"
)
_GOOD_STATUS: Final = frozenset(
    {"ok", "success", "succeeded", "completed", "done", "running", "pending", "in_progress"}
)
_IDLE_RESULT_KEYS: Final = frozenset(
    {
        "duration",
        "duration_ms",
        "duration_seconds",
        "elapsed",
        "elapsed_ms",
        "exit_code",
        "exitcode",
        "has_more",
        "is_error",
        "iserror",
        "metadata",
        "ok",
        "path",
        "pattern",
        "query",
        "returncode",
        "success",
        "timed_out",
        "timedout",
        "truncated",
        "wall_time_seconds",
    }
)


def _parse_object(text: str) -> dict[str, Any] | list[Any] | None:
    body = text.strip()
    if body[:1] not in ("{", "[") or len(body) > JSON_CHARS:
        return None
    try:
        value = _decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None
    return value if isinstance(value, dict | list) else None


def _fold(value: Mapping[str, Any]) -> dict[str, Any]:
    folded = {name.lower(): member for name, member in value.items()}
    metadata = folded.get("metadata")
    return {**metadata, **folded} if isinstance(metadata, dict) else folded


def _tells_error(value: Mapping[str, Any], call: CallFacts) -> bool:
    fields = _fold(value)
    for name in ("exit_code", "exitcode", "returncode"):
        code = fields.get(name)
        if isinstance(code, int) and code:
            told = "".join(str(fields.get(key) or "") for key in ("output", "stdout", "stderr"))
            return not _is_without_match([code], told, call)
    if fields.get("error") or fields.get("errors") or fields.get("is_error") or fields.get("iserror"):
        return True
    if fields.get("success") is False or fields.get("ok") is False:
        return True
    if str(fields.get("status")).lower() in ("error", "failed", "failure", "cancelled", "timeout"):
        return True
    output = fields.get("output")
    return "exit_code" not in fields and isinstance(output, str) and _reads_as_failure(output, call)


def _holds_nothing(value: dict[str, Any] | list[Any]) -> bool:
    """Whether an object says only that there is nothing: `{"matches": [], "count": 0}`."""
    if isinstance(value, list):
        return not value
    return all(_says_nothing(name.lower(), member) for name, member in value.items())


def _says_nothing(name: str, member: Any) -> bool:
    if name in _IDLE_RESULT_KEYS or member is None or (isinstance(member, str | list | dict) and not member):
        return True
    if name in ("output", "stdout", "message") and isinstance(member, str):
        body = _read_told(member).body.strip()
        return _finds_nothing(body) or _STILL_RUNNING.fullmatch(body) is not None
    if name in ("status", "state"):
        return isinstance(member, str) and member.lower() in _GOOD_STATUS
    return member == 0 and bool(_EMPTY_COUNTS.search(name))
