"""Zero retention: what a request may still do when nothing of it may be kept.

It knows no keys and no store. Invariant: after `apply_zero_retention` nothing that the request says, and nothing that
is answered, has a reason to be written anywhere.
"""

from antiphon.protocol.errors import RequestError
from antiphon.protocol.requests import CreateRequest


def apply_zero_retention(request: CreateRequest) -> None:
    """Force `store` to false; raise `RequestError` for what cannot be done without keeping anything."""
    if request.background:
        raise make_retention_refusal(
            "a background response has to be kept until it is read",
            "Leave 'background' out.",
            param="background",
        )
    if request.conversation is not None:
        raise make_retention_refusal(
            "a conversation keeps what is said in it",
            "Leave 'conversation' out and send the whole history as 'input'.",
            param="conversation",
        )
    request.store = False


def refuse_conversation_write(*, zero_retention: bool) -> None:
    """Raise where a conversation would be created, changed or added to for a key of which nothing is kept."""
    if zero_retention:
        raise make_retention_refusal(
            "conversations cannot be created or written", "Those that exist can be read and deleted."
        )


def make_retention_refusal(why: str, remedy: str, *, param: str | None = None) -> RequestError:
    """The refusal of something that would have to be kept."""
    return RequestError(
        f"Zero retention is in force: nothing of your requests is kept, and {why}. {remedy}",
        param=param,
        code="zero_retention",
    )
