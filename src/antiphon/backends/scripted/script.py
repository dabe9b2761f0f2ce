"""Scripts: what the scripted model answers, as TOML or JSON.

    models = ["scripted"]        # names that the endpoint lists
    window_tokens = 32768        # prompt and output share it; a prompt that fills it is refused
    rules = [...]                # the first that fits answers
    answers = [...]              # else the answer of this round: the n-th, n = answers in the window so far

An answer (and a rule, which is an answer with conditions) holds:

    text = "..."                 # or texts = ["del", "tas"], or act = "recall" (see `acts`)
    reasoning, refusal = "..."
    calls = [{name = "f", arguments = {x = 1}, id = "call_1"}]     # arguments: a table, or text as it is
    finish = "stop"              # or "length", "content_filter"
    usage = true                 # counted; false: not told; or {input_tokens = 1, output_tokens = 2, ...}
    error = {at = "before", status = 429, message = "...", code = "..."}     # or at = "after" the text
    chunk = 1                    # words in each delta
    pause_s = 0                  # seconds before each delta

A rule's conditions, all of which must hold: `when` (regular expression, searched in the last user text),
`model`, `after_output` (the window ends with tool outputs), `tool_forced` (a call is demanded),
`names_tool` (the last user text names an offered tool), `wants_json` (a JSON format is demanded).

It knows no window. Invariant: a script that loads can be played.
"""

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from antiphon.backends.interface import FinishReason
from antiphon.protocol.errors import AntiphonError

Act: TypeAlias = Literal["call_tools", "repeat_outputs", "fill_schema", "note", "recall", "describe"]


class ScriptError(AntiphonError):
    """The script cannot be played."""


class Part(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What all parts of a script share: a misspelt key is an error."""


class Call(Part, frozen=True, kw_only=True):
    """A call of a function, under its flat name (`namespace__name`); without an `id` the server gives one."""

    name: str
    arguments: str | dict[str, Any] = {}
    id: str = ""

    def encode_arguments(self) -> str:
        """The arguments as the model would write them."""
        if isinstance(self.arguments, str):
            return self.arguments
        return msgspec.json.encode(self.arguments).decode()


class Usage(Part, frozen=True, kw_only=True):
    """Token counts to report instead of the true ones."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class Trouble(Part, frozen=True, kw_only=True):
    """A failure: a refusal before anything is sent, or a break after the answer's text."""

    at: Literal["before", "after"] = "before"
    status: Annotated[int, Meta(ge=400, le=599)] = 500
    message: str = "The script says that this fails."
    code: str | None = None


class Answer(Part, frozen=True, kw_only=True):
    """One answer; one without anything in it is an empty generation."""

    text: str = ""
    texts: tuple[str, ...] = ()
    act: Act | None = None
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    finish: FinishReason = "stop"
    usage: bool | Usage = True
    error: Trouble | None = None
    chunk: Annotated[int, Meta(ge=1)] = 1
    pause_s: Annotated[float, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        if bool(self.text) + bool(self.texts) + bool(self.act) > 1:
            raise ValueError("Only one of text, texts and act can be given")


class Rule(Answer, frozen=True, kw_only=True):
    """An answer, and when to give it; a condition that is absent holds always."""

    when: str | None = None
    model: str | None = None
    after_output: bool | None = None
    tool_forced: bool | None = None
    names_tool: bool | None = None
    wants_json: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.when is not None:
            try:
                re.compile(self.when)
            except re.error as error:
                raise ValueError(f"`when` is no regular expression: {error}") from error


class Script(Part, frozen=True, kw_only=True):
    """What the scripted model knows and says."""

    models: Annotated[tuple[str, ...], Meta(min_length=1)] = ("scripted",)
    window_tokens: Annotated[int, Meta(ge=1)] = 32768
    rules: tuple[Rule, ...] = ()
    answers: tuple[Answer, ...] = ()

    def __post_init__(self) -> None:
        if not self.rules and not self.answers:
            raise ValueError("A script needs `rules` or `answers`")


def load_script(path: Path | None = None) -> Script:
    """The script in a .toml or .json file; without one, the built-in script. Raises `ScriptError`."""
    if path is None:
        text = resources.files("antiphon.backends.scripted").joinpath("demo.toml").read_text("utf-8")
        return parse_script(text)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"The script {path} cannot be read: {error}.") from error
    try:
        return parse_script(text, "json" if path.suffix == ".json" else "toml")
    except ScriptError as error:
        raise ScriptError(f"{path}: {error.message}") from error


def parse_script(text: str, syntax: Literal["toml", "json"] = "toml") -> Script:
    """A script from its text; raises `ScriptError` that names the place."""
    try:
        if syntax == "json":
            return msgspec.json.decode(text, type=Script)
        return msgspec.convert(tomllib.loads(text), Script)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise ScriptError(f"The script cannot be played: {error}.") from error
