"""The log says what happened and where, and repeats nobody's words."""

import logging
import subprocess
import sys

import pytest

from antiphon.protocol.errors import (
    AntiphonError,
    BackendError,
    BackendTimeoutError,
    ProtocolError,
    StoreError,
)
from antiphon.server.log_format import (
    ENTRY,
    MAX_EXCEPTIONS,
    UNSHOWN,
    LogFormatter,
    describe_error,
    describe_fault,
)

WORD = "marmalade"


def fail_by(*errors: BaseException) -> BaseException:
    """The last of some exceptions, each raised while the one before it was handled."""
    try:
        if len(errors) > 1:
            try:
                raise fail_by(*errors[:-1])
            except BaseException:
                raise errors[-1]  # noqa: B904 - the context is what is tried
        raise errors[0]
    except BaseException as error:
        return error


def render(name: str, text: str, *values: object, error: BaseException | None = None) -> str:
    """One entry of the log."""
    info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord(name, logging.ERROR, "file.py", 1, text, values, info)
    # What another handler leaves behind.
    record.exc_text = WORD
    return LogFormatter(ENTRY).format(record)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"invalid literal: '{WORD}'"),
        KeyError(WORD),
        OSError(28, WORD, WORD),
        UnicodeEncodeError("ascii", WORD, 0, 1, WORD),
        ExceptionGroup(WORD, [TypeError(WORD), KeyError(WORD)]),
    ],
)
def test_a_fault_is_told_by_types_and_places_without_texts(error: BaseException) -> None:
    """Decided: zero retention holds for the log, and exceptions quote values."""
    text = render("antiphon.engine", "response %s failed", "resp_1", error=fail_by(LookupError(WORD), error))
    assert WORD not in text
    assert "response resp_1 failed" in text
    assert "builtins.LookupError" in text
    assert f"builtins.{type(error).__name__}" in text
    assert "raise errors[-1]" in text
    assert ("[Errno 28]" in text) is isinstance(error, OSError)


def test_every_member_of_a_group_is_told() -> None:
    """Ours."""
    text = describe_fault(ExceptionGroup(WORD, [TypeError(WORD), KeyError(WORD)]))
    assert [line for line in text.splitlines() if line.startswith("builtins.")] == [
        "builtins.KeyError",
        "builtins.TypeError",
        "builtins.ExceptionGroup",
    ]


def test_a_long_or_circular_chain_ends() -> None:
    """Ours: telling of a fault must not be one."""
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert describe_fault(first).count("builtins.ValueError") == 2
    assert describe_fault(fail_by(*(ValueError() for _ in range(30)))).count("builtins.") == MAX_EXCEPTIONS


@pytest.mark.parametrize("name", ["asyncio", "mcp.client", "antiphonal"])
def test_other_libraries_entries_have_no_words(name: str) -> None:
    """Decided: some log whole messages."""
    text = render(name, f"{WORD} %s", WORD, error=fail_by(ValueError(WORD)))
    assert WORD not in text
    assert f"ERROR {name} {UNSHOWN}" in text
    assert "builtins.ValueError" in text


def test_our_own_entries_are_whole() -> None:
    """Ours."""
    assert render("antiphon.server", "%s: %s", "req_1", "told").endswith("ERROR antiphon.server req_1: told")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            BackendError(f"The model server failed with status 500: cannot parse {WORD}: x"),
            "BackendError: The model server failed with status 500 (its words are for the client alone)",
        ),
        (
            BackendTimeoutError("The model server of endpoint 'a' was silent for 3 s."),
            "BackendTimeoutError: The model server of endpoint 'a' was silent for 3 s.",
        ),
        (StoreError("It could not be stored: disk full."), "It could not be stored: disk full."),
        (ProtocolError(), "ProtocolError: Antiphon broke its own protocol; please report this."),
        (
            AntiphonError(f"A tool server said: {WORD}"),
            "AntiphonError: A tool server said (its words are for the client alone)",
        ),
    ],
)
def test_an_error_is_told_without_what_a_server_said(error: AntiphonError, told: str) -> None:
    """Decided: a model server's error may quote the prompt; it goes to the client and to nobody else."""
    assert describe_error(error) == told


def test_the_log_of_a_process_shows_ours_from_info_and_others_from_warning() -> None:
    """Ours: in a process of its own, since the log belongs to the whole process."""
    code = (
        "import logging; from antiphon.server.log_format import open_log; open_log();"
        " logging.getLogger('antiphon.bootstrap').info('stopping');"
        " logging.getLogger('antiphon.bootstrap').debug('detail');"
        " logging.getLogger('httpx').info('GET marmalade');"
        " logging.getLogger('httpx').warning('GET marmalade')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert [line.split(" ", 2)[2] for line in done.stderr.splitlines()] == [
        "INFO antiphon.bootstrap stopping",
        f"WARNING httpx {UNSHOWN}",
    ]
