"""The error tree. It branches by who must act, and knows no transport.

AntiphonError
├── RequestError            the caller must change the request         400
│   ├── AuthenticationError     no key, or one we do not know          401
│   ├── ForbiddenError          this caller may not do that            403
│   ├── NotFoundError           no such response, model or route       404
│   ├── MethodNotAllowedError   the route exists, the verb does not    405
│   ├── UpgradeRequiredError    WebSocket is not served here           426
│   ├── BodyTooLargeError       over the body limit                    413
│   └── MediaTypeError          a content type or coding we do not read 415
├── BackendError            the model server must be looked at         502
│   ├── BackendTimeoutError     it did not answer in time              504
│   ├── BackendAuthError        it refuses our key                     500
│   ├── BackendRateLimitError   it asks to slow down                   429
│   ├── BackendRefusedError     it refuses this request                400
│   └── ContextOverflowError    the prompt does not fit its window     400
├── RateLimitError          the caller must slow down                  429
│   └── OverloadedError         all callers: too much waits already    429
├── CompactionFailedError   a larger window, or a shorter message      500
├── ServerStoppingError     whoever runs the server stops it           503
├── StoreError              our storage must be looked at              500
└── ProtocolError           our own bug                                500
    └── LifecycleError          an event that the lifecycle table does not allow

A class's docstring is its default message.
"""

from typing import Any, ClassVar

import msgspec

#: What `response.error.code` may hold: the SDK's enum members that we use, and the four we add.
RESPONSE_ERROR_CODES = frozenset(
    {
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "context_length_exceeded",
        "insufficient_quota",
        "server_is_overloaded",
        "compaction_failed",
    }
)


#: When a client may try again where nobody knows how long it takes.
RETRY_AFTER_S = 5
#: So much of what a client sent is said back to it: an id of ours is shorter.
QUOTED_CHARACTERS = 64


def shorten_quoted(text: str) -> str:
    """A name or id of the client's, as an error may quote it: one of any length would make an error of any length."""
    return text if len(text) <= QUOTED_CHARACTERS else f"{text[:QUOTED_CHARACTERS]}..."


class ErrorObject(msgspec.Struct):
    """The `error` object of every error answer; all four keys are always there."""

    message: str
    type: str
    param: str | None
    code: str | None


class AntiphonError(Exception):
    """Something went wrong inside Antiphon."""

    status = 500
    type = "server_error"
    code: str | None = None
    #: Headers of every answer with it.
    own_headers: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip().split("\n")[0]
        self.param = param
        if code is not None:
            self.code = code
        self.headers = {**self.own_headers, **(headers or {})}
        super().__init__(self.message)

    def to_object(self) -> ErrorObject:
        """The `error` object for the wire (responses-API section 'Errors')."""
        return ErrorObject(message=self.message, type=self.type, param=self.param, code=self.code)

    def to_body(self) -> bytes:
        """The whole JSON body: `{"error": {...}}`."""
        return msgspec.json.encode({"error": self.to_object()})

    def to_response_error(self) -> dict[str, Any]:
        """`response.error`: `{code, message}`, the code from the set that clients know."""
        code = self.code if self.code in RESPONSE_ERROR_CODES else "server_error"
        return {"code": code, "message": self.message}


class RequestError(AntiphonError):
    """The request cannot be carried out as it was sent."""

    status = 400
    type = "invalid_request_error"


class AuthenticationError(RequestError):
    """Incorrect API key provided. Send a key that this server knows as 'Authorization: Bearer KEY'."""

    status = 401
    code = "invalid_api_key"


class ForbiddenError(RequestError):
    """This caller is not allowed to do that."""

    status = 403


class NotFoundError(RequestError):
    """There is no such thing here."""

    status = 404


class MethodNotAllowedError(RequestError):
    """This method is not allowed here."""

    status = 405


class UpgradeRequiredError(RequestError):
    """WebSocket is not served here; send the request over HTTP."""

    status = 426


class BodyTooLargeError(RequestError):
    """The request body is too large."""

    status = 413


class MediaTypeError(RequestError):
    """This content type or content coding cannot be read."""

    status = 415


class BackendError(AntiphonError):
    """The model server failed."""

    status = 502


class BackendTimeoutError(BackendError):
    """The model server did not answer in time."""

    status = 504


class BackendAuthError(BackendError):
    """The model server refused Antiphon's credentials; the server's log says for which endpoint."""

    status = 500


class BackendRateLimitError(BackendError):
    """The model server asks to slow down."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class BackendRefusedError(BackendError):
    """The model server refused the request."""

    status = 400
    type = "invalid_request_error"

    def to_response_error(self) -> dict[str, Any]:
        """A refusal is the prompt's fault in the SDK's enum, not the server's."""
        code = self.code if self.code in RESPONSE_ERROR_CODES else "invalid_prompt"
        return {"code": code, "message": self.message}


class ContextOverflowError(BackendError):
    """Your input exceeds the context window of this model. Please adjust your input and try again."""

    status = 400
    type = "invalid_request_error"
    code = "context_length_exceeded"

    def __init__(
        self,
        message: str | None = None,
        *,
        prompt_tokens: int | None = None,
        window_tokens: int | None = None,
        at_least: bool = False,
    ) -> None:
        told = []
        if prompt_tokens is not None:
            told.append(f"the prompt has {'at least ' if at_least else ''}{prompt_tokens} tokens")
        if window_tokens is not None:
            told.append(f"the window holds {window_tokens}")
        text = message or type(self).__doc__ or ""
        super().__init__(f"{text} ({', '.join(told)})" if told else text, param="input")
        self.prompt_tokens = prompt_tokens
        self.window_tokens = window_tokens
        #: The server stopped counting at its limit, so the prompt may be longer.
        self.at_least = at_least


class CompactionFailedError(AntiphonError):
    """The window could not be compacted: what must stay in it does not fit. The history is as it was."""

    code = "compaction_failed"
    # The same would come of the same.
    own_headers: ClassVar[dict[str, str]] = {"x-should-retry": "false"}


class RateLimitError(AntiphonError):
    """Too much was asked at once; wait for a response to end, or try again later."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    own_headers: ClassVar[dict[str, str]] = {"retry-after": str(RETRY_AFTER_S)}


class OverloadedError(RateLimitError):
    """Too much is waiting already. Please try again in 5s."""

    # Not 503: clients repeat that at once, or give up.


class StoreError(AntiphonError):
    """The response could not be stored, so it is not claimed to be complete."""


class ServerStoppingError(AntiphonError):
    """The server is stopping; send the request again."""

    status = 503
    # Not "overloaded": clients take that for a reason to give up, and this one passes with the next server.
    code = "server_error"
    own_headers: ClassVar[dict[str, str]] = {"retry-after": str(RETRY_AFTER_S)}


class ProtocolError(AntiphonError):
    """Antiphon broke its own protocol; please report this."""


class LifecycleError(ProtocolError):
    """An event came that the lifecycle table does not allow here."""
