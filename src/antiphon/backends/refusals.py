"""A server's error answer -> our error: pure.

Invariant: the server's text reaches the client only where the client can act on it; a refusal of our
own credentials never does, since such texts quote keys.
"""

import re
from typing import Any, Final, NamedTuple

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

#: Longer texts from a server are cut; error pages are long and say little.
MESSAGE_CHARACTERS = 1_000
#: A `retry-after` is a number or a date.
RETRY_AFTER_CHARACTERS = 64

#: What a server names as `code` and `param` of an error: words and paths, as the API's own are.
_CODE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PARAM: Final = re.compile(r"[A-Za-z0-9_.\[\]'\"-]{1,200}")

#: Statuses with which servers say that a prompt does not fit; Ollama has said it with a 500.
_OVERFLOW_STATUSES = frozenset({400, 413, 422, 500})
#: Overloaded: 503 by the standard, 529 at Anthropic and its relatives.
_OVERLOADED_STATUSES = frozenset({503, 529})
#: `code` or `type` of a Responses error -> the status with which the same is said before a stream.
_CODE_STATUSES: tuple[tuple[frozenset[str], int], ...] = (
    (frozenset({"rate_limit_exceeded", "rate_limit_error", "insufficient_quota"}), 429),
    (frozenset({"authentication_error", "invalid_api_key"}), 401),
    (frozenset({"server_is_overloaded", "slow_down"}), 503),
    (frozenset({"invalid_prompt", "invalid_request_error", "bio_policy", "cyber_policy"}), 400),
    (
        frozenset(
            {
                "empty_image_file",
                "failed_to_download_image",
                "image_content_policy_violation",
                "image_file_not_found",
                "image_file_too_large",
                "image_parse_error",
                "image_too_large",
                "image_too_small",
                "invalid_base64_image",
                "invalid_image",
                "invalid_image_format",
                "invalid_image_mode",
                "invalid_image_url",
                "unsupported_image_media_type",
            }
        ),
        400,
    ),
)


class _Told(NamedTuple):
    """What an error body says, whatever its shape."""

    message: str = ""
    codes: frozenset[str] = frozenset()
    #: The `code`, where it is an HTTP status.
    status: int | None = None
    prompt_tokens: int | None = None
    window_tokens: int | None = None
    #: What the error names, where that is well-formed.
    code: str | None = None
    param: str | None = None


def read_refusal(
    status: int,
    body: bytes,
    *,
    model: str,
    retry_after: str | None = None,
    api: str = "chat completions",
    is_our_api: bool = False,
) -> AntiphonError:
    """The error for an HTTP error answer that came before any event; `api` is what was asked for.

    `is_our_api`: the server has our API, so that the code and the parameter that it names are the client's own.
    """
    told = _read_body(body)
    if status == 404 and not (is_our_api and told.param not in (None, "model")):
        return _read_missing(told, model, api)
    return _read(status, told, retry_after, is_our_api=is_our_api)


def read_stream_error(error: bytes) -> AntiphonError:
    """The error for an `error` member inside a stream, an error event or a bare JSON error line."""
    told = _read_body(error)
    overflow = _read_overflow(told)
    if overflow is not None:
        return overflow
    if told.status in (None, 404, 500):
        return BackendError(_phrase("The model server failed while answering", told))
    return _read(told.status or 500, told, None)


def read_failure(error: bytes) -> AntiphonError:
    """The error for the `error` of a failed response, or an error event of the Responses API: its code tells."""
    told = _read_body(error)
    for codes, status in _CODE_STATUSES:
        if not codes.isdisjoint(told.codes):
            return _read(status, told, None, is_our_api=True)
    return read_stream_error(error)


def _read(status: int, told: _Told, retry_after: str | None, *, is_our_api: bool = False) -> AntiphonError:
    if status in (401, 403):
        return BackendAuthError()
    if status in (402, 429):
        quota = status == 402 or "insufficient_quota" in told.codes
        opening = "The model server's quota is used up" if quota else "The model server asks to slow down"
        return BackendRateLimitError(
            _phrase(opening, told),
            code="insufficient_quota" if quota else None,
            headers=_pass_on(retry_after),
        )
    overflow = _read_overflow(told) if status in _OVERFLOW_STATUSES else None
    if overflow is not None:
        return overflow
    if status in (408, 504):
        return BackendTimeoutError(_phrase("The model server timed out", told))
    if 400 <= status < 500:
        return BackendRefusedError(
            _phrase("The model server refused the request", told),
            param=told.param if is_our_api else None,
            code=told.code if is_our_api else None,
        )
    if status in _OVERLOADED_STATUSES:
        return BackendError(
            _phrase("The model server is not ready", told),
            code="server_is_overloaded",
            headers=_pass_on(retry_after),
        )
    if 300 <= status < 400:
        return BackendError(f"The model server redirects ({status}); check the endpoint's url.")
    return BackendError(_phrase(f"The model server failed with status {status}", told))


def _read_missing(told: _Told, model: str, api: str) -> AntiphonError:
    if "model" in told.message.lower():
        return RequestError(
            f"The requested model '{model}' does not exist.", param="model", code="model_not_found"
        )
    return BackendError(f"The model server has no {api} at this address (404); check the endpoint's url.")


def _pass_on(retry_after: str | None) -> dict[str, str] | None:
    if retry_after is None or len(retry_after) > RETRY_AFTER_CHARACTERS:
        return None
    return {"retry-after": retry_after} if retry_after.isascii() and retry_after.isprintable() else None


def _read_overflow(told: _Told) -> BackendError | None:
    return read_overflow(
        told.message, codes=told.codes, prompt_tokens=told.prompt_tokens, window_tokens=told.window_tokens
    )


def _phrase(opening: str, told: _Told) -> str:
    return f"{opening}: {told.message}" if told.message else f"{opening}."


def _read_body(body: bytes) -> _Told:
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        return _Told() if text.startswith("<") else _Told(text[:MESSAGE_CHARACTERS])
    if isinstance(value, list) and len(value) == 1:
        # Gemini wraps its error in a list.
        value = value[0]
    error = value.get("error") or value if isinstance(value, dict) else value
    if not isinstance(error, dict):
        return _Told(error[:MESSAGE_CHARACTERS] if isinstance(error, str) else "")
    message = error.get("message") or error.get("detail") or error.get("error") or ""
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    code = error.get("code")
    return _Told(
        message[:MESSAGE_CHARACTERS],
        frozenset(word for word in (code, error.get("type"), error.get("status")) if isinstance(word, str)),
        _read_status(code),
        _read_count(error.get("n_prompt_tokens")),
        _read_count(error.get("n_ctx")),
        _read_word(code, _CODE),
        _read_word(error.get("param"), _PARAM),
    )


def _read_word(value: object, pattern: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


def _read_status(code: object) -> int | None:
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _read_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
