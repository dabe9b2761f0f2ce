"""A server's error answer -> our error: pure.

Invariant: the server's text reaches the client only where the client can act on it; a refusal of our
own credentials never does, since such texts quote keys.
"""

from typing import Any

import msgspec

from antiphon.backends.overflow import read_overflow
from antiphon.protocol.errors import (
    AntiphonError,
    BackendAuthError,
    BackendError,
    BackendRateLimitError,
    BackendRefusedError,
    BackendTimeoutError,
    RequestError,
)

#: Longer texts from a server are cut; HTML error pages are long and say little.
MESSAGE_CHARACTERS = 1_000


class _Told:
    """What an error body says, whatever its shape."""

    def __init__(self, message: str, code: str, prompt_tokens: int | None, window_tokens: int | None) -> None:
        self.message = message
        self.code = code
        self.prompt_tokens = prompt_tokens
        self.window_tokens = window_tokens


def read_refusal(status: int, body: bytes, *, model: str, retry_after: str | None = None) -> AntiphonError:
    """The error for an HTTP error answer that came before any event."""
    told = _read_body(body)
    if status in (401, 403):
        return BackendAuthError()
    if status == 429:
        headers = {"retry-after": retry_after} if retry_after else None
        quota = told.code == "insufficient_quota"
        return BackendRateLimitError(
            _phrase("The model server asks to slow down", told),
            code="insufficient_quota" if quota else None,
            headers=headers,
        )
    overflow = _overflow(told)
    if overflow is not None and status in (400, 413, 422, 500):
        return overflow
    if status == 404 and "model" in told.message.lower():
        return RequestError(
            f"The requested model '{model}' does not exist.", param="model", code="model_not_found"
        )
    if status == 404:
        return BackendError(
            "The model server has no chat completions at this address (404); check the endpoint's url."
        )
    if status in (408, 504):
        return BackendTimeoutError(_phrase("The model server timed out", told))
    if 400 <= status < 500:
        return BackendRefusedError(_phrase("The model server refused the request", told))
    if status == 503:
        return BackendError(_phrase("The model server is not ready", told), code="server_is_overloaded")
    return BackendError(_phrase(f"The model server failed with status {status}", told))


def read_stream_error(error: bytes) -> BackendError:
    """The error for an `error` member inside a stream, or for a bare JSON error line."""
    told = _read_body(b'{"error":' + error + b"}")
    overflow = _overflow(told)
    if overflow is not None:
        return overflow
    return BackendError(_phrase("The model server failed while answering", told))


def _overflow(told: _Told) -> BackendError | None:
    return read_overflow(
        f"{told.code} {told.message}", prompt_tokens=told.prompt_tokens, window_tokens=told.window_tokens
    )


def _phrase(opening: str, told: _Told) -> str:
    return f"{opening}: {told.message}" if told.message else f"{opening}."


def _read_body(body: bytes) -> _Told:
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        return _Told("" if text.startswith("<") else text[:MESSAGE_CHARACTERS], "", None, None)
    error = value.get("error", value) if isinstance(value, dict) else value
    if not isinstance(error, dict):
        return _Told(str(error)[:MESSAGE_CHARACTERS], "", None, None)
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    code = error.get("code")
    kind = error.get("type")
    words = [word for word in (code, kind) if isinstance(word, str)]
    return _Told(
        str(message)[:MESSAGE_CHARACTERS],
        words[0] if words else "",
        _count(error.get("n_prompt_tokens")),
        _count(error.get("n_ctx")),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
