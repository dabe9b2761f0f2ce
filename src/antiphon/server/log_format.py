"""What the log may say: what happened and where, and nothing that a client, a model or another server said.

It knows no request. Invariant: the text of a foreign exception or of another library's entry never reaches the log,
since it may quote what somebody said.
"""

import logging
import traceback
from collections.abc import Iterator
from typing import Any, Final

from antiphon.protocol.errors import AntiphonError, StoreError

OURS: Final = "antiphon"
ENTRY: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
#: Stands for what another library has to say.
UNSHOWN: Final = "(said something that is not shown, since it may quote a request or an answer)"
#: A longer chain of exceptions is cut.
MAX_EXCEPTIONS: Final = 10


def open_log() -> None:
    """Log to standard error: our own entries from INFO, those of other libraries from WARNING and without words."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(ENTRY))
    # Nothing happens where a log was opened before.
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger(OURS).setLevel(logging.INFO)


def describe_error(error: AntiphonError) -> str:
    """An error as the log has it: `BackendError: The model server failed with status 500`.

    What follows a colon in a message may be the words of the model server; they are for the client alone.
    """
    if isinstance(error, StoreError):
        return error.message
    said, _, quoted = error.message.partition(": ")
    return f"{type(error).__name__}: {said}{' (its words are for the client alone)' if quoted else ''}"


def describe_fault(error: BaseException) -> str:
    """Types and places of an exception and of what led to it, without their texts."""
    return "\n".join(line for one in _iter_chain(error) for line in _describe_one(one))


class LogFormatter(logging.Formatter):
    """Entries without the texts of exceptions; of other libraries, without any text."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name != OURS and not record.name.startswith(f"{OURS}."):
            record = logging.makeLogRecord(
                {**record.__dict__, "msg": UNSHOWN, "args": (), "stack_info": None}
            )
        # Another handler may have left the text of the exception here.
        record.exc_text = None
        return super().format(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is the standard library's
        """The exception without its text."""
        return describe_fault(ei[1]) if ei[1] is not None else ""


def _iter_chain(error: BaseException) -> Iterator[BaseException]:
    """What led to the exception first, the exception itself last."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting and len(found) < MAX_EXCEPTIONS:
        one = waiting.pop(0)
        if one is None or any(one is other for other in found):
            continue
        found.append(one)
        waiting.append(one.__cause__ or (None if one.__suppress_context__ else one.__context__))
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(one.exceptions)
    return reversed(found)


def _describe_one(error: BaseException) -> Iterator[str]:
    yield "Traceback (most recent call last):"
    for entry in traceback.format_tb(error.__traceback__):
        yield entry.rstrip("\n")
    kind = type(error)
    number = f" [Errno {error.errno}]" if isinstance(error, OSError) and error.errno is not None else ""
    yield f"{kind.__module__}.{kind.__qualname__}{number}"
