"""What can go wrong between a client and a server, by what the user should look at.

AntiphonError
├── ClientError                 the server answered, with an error or with something unreadable
│   └── UpgradeRefusedError         with an HTTP answer instead of a WebSocket
└── ConnectionFailedError       no answer, or it broke off
    ├── SocketClosedError           a WebSocket was closed, in order or not
    ├── UnreachableError            no connection: nothing was sent
    └── ApplicationFailedError      the application in this process raised an exception
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.protocol.errors import AntiphonError

#: How much of an answer that is not an error object is quoted in a message.
_QUOTED_CHARACTERS = 300


class ClientError(AntiphonError):
    """The server answered with an error: its status, its error object ({} when there is none), its body."""

    def __init__(
        self, status: int, body: bytes, *, reason: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.body_text = body.decode(errors="replace")
        self.error = _find_error(body)
        said = self.error.get("message") or " ".join(self.body_text.split())[:_QUOTED_CHARACTERS]
        code = self.error.get("code")
        super().__init__(
            f"the server answered {status}{reason and f' {reason}'}: {said}",
            code=code if isinstance(code, str) else None,
            headers=dict(headers or {}),
        )
        self.status = status

    @property
    def request_id(self) -> str:
        """What the server's log calls this request; empty when the server does not tell."""
        return self.headers.get("x-request-id", "")


class UpgradeRefusedError(ClientError):
    """The server answered the upgrade to WebSocket over HTTP: `body` is what it said."""

    def __init__(self, status: int, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, body, reason="instead of opening a WebSocket", headers=headers)
        self.body = body


class ConnectionFailedError(AntiphonError):
    """The server could not be reached, or the connection broke off."""


class SocketClosedError(ConnectionFailedError):
    """The WebSocket is closed: `close_code` as in RFC 6455 (1006: it broke off), `reason` as the server said it."""

    def __init__(self, close_code: int, reason: str = "") -> None:
        super().__init__(f"the WebSocket was closed with code {close_code}{reason and f': {reason}'}")
        self.close_code = close_code
        self.reason = reason


class UnreachableError(ConnectionFailedError):
    """No connection to the server could be made, so nothing was sent."""


class ApplicationFailedError(ConnectionFailedError):
    """The application in this process raised an exception instead of answering."""


def _find_error(body: bytes) -> dict[str, Any]:
    """The `error` object of a body; a text instead of an object counts as its message."""
    try:
        members = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    error = members.get("error") if isinstance(members, dict) else None
    if isinstance(error, dict):
        return error
    return {"message": error} if isinstance(error, str) else {}
