"""What a server answered, read leniently: a checker must survive every server.

It knows no transport. Invariant: nothing here raises on wrong types; what cannot be read is absent.
"""

import unicodedata
from typing import Any

import msgspec

Item = dict[str, Any]

#: A server's text in a report, at most.
MAX_TOLD_CHARS = 300
#: Statuses of a response that carries an answer.
ANSWERED = ("completed", "incomplete")
#: Item types that hold no answer by themselves.
_SILENT_ITEMS = ("message", "reasoning")
_OVERFLOW_WORDS = ("context window", "context length", "context size", "maximum context", "context_length")


class Answer(msgspec.Struct, frozen=True):
    """A response object that carries an answer."""

    id: str
    status: str
    output: list[Item]
    tokens: int | None
    previous_response_id: Any
    body: dict[str, Any]

    @property
    def text(self) -> str:
        """The text of its messages."""
        return " ".join(text for item in self.output for text in _list_texts(item, "text"))

    @property
    def calls(self) -> list[Item]:
        """Its function calls that can be answered."""
        return [
            item
            for item in self.output
            if item.get("type") == "function_call" and isinstance(item.get("call_id"), str)
        ]

    @property
    def is_empty(self) -> bool:
        """Neither text, nor a refusal, nor a call: nothing that a client could show or carry out."""
        if any(item.get("type", "message") not in _SILENT_ITEMS for item in self.output):
            return False
        return not self.text.strip() and not any(_list_texts(item, "refusal") for item in self.output)


class Refusal(msgspec.Struct, frozen=True):
    """An error instead of an answer. `status` is HTTP's; 200 where a response failed."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None

    @property
    def is_clients_fault(self) -> bool:
        """The server says that it will not do this, not that it cannot right now."""
        return self.status in (400, 404, 405, 409, 410, 422, 426, 501)

    @property
    def is_overflow(self) -> bool:
        """The server says that the prompt does not fit its window."""
        told = self.message.lower()
        return self.code == "context_length_exceeded" or any(words in told for words in _OVERFLOW_WORDS)

    def __str__(self) -> str:
        code = f", code {self.code}" if self.code else ""
        return f"{self.status}{code}: {self.message}"


def read_response(body: Any) -> Answer | Refusal | None:
    """The answer or the failure in a decoded response object; None where it is no response object."""
    if not isinstance(body, dict) or not isinstance(body.get("output"), list):
        return None
    status, response_id = body.get("status"), body.get("id")
    if status not in ANSWERED:
        error = body.get("error")
        if status in ("failed", "cancelled"):
            return _read_error(
                200, error if isinstance(error, dict) else {"message": f"the response is {status}"}
            )
        return None
    if not isinstance(response_id, str) or not response_id:
        return None
    return Answer(
        id=response_id,
        status=status,
        output=[item for item in body["output"] if isinstance(item, dict)],
        tokens=_read_tokens(body.get("usage")),
        previous_response_id=body.get("previous_response_id"),
        body=body,
    )


def read_refusal(status: int, raw: bytes) -> Refusal:
    """The refusal in an HTTP error, whatever its body is: {"error": {...}}, {"error": "..."} or text."""
    body = decode_json(raw)
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        return _read_error(status, error)
    return Refusal(status, tidy(error if isinstance(error, str) else raw.decode(errors="replace")))


def read_event_error(event: dict[str, Any]) -> Refusal:
    """The refusal in an `error` event, nested or flat."""
    error = event.get("error")
    return _read_error(200, error if isinstance(error, dict) else event)


def decode_json(raw: bytes) -> Any:
    """The decoded JSON, or None."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def tidy(text: Any, limit: int = MAX_TOLD_CHARS) -> str:
    """Printable, on one line and short: a server's text must not steer the terminal that shows it."""
    shown = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in str(text)[: 4 * limit])
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[:limit] + "..."


def _read_error(status: int, error: dict[str, Any]) -> Refusal:
    message = error.get("message") or error.get("detail") or error
    code, param = error.get("code"), error.get("param")
    return Refusal(
        status,
        tidy(message),
        code=tidy(code, 80) if isinstance(code, str) else None,
        param=tidy(param, 80) if isinstance(param, str) else None,
    )


def _read_tokens(usage: Any) -> int | None:
    tokens = usage.get("input_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None


def _list_texts(item: Item, key: str) -> list[str]:
    if item.get("type", "message") != "message":
        return []
    content = item.get("content")
    if isinstance(content, str):
        return [content] if key == "text" else []
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return [part[key] for part in parts if isinstance(part.get(key), str) and part[key]]
