"""One connection that asks for many responses: what it can continue, and what a failure makes it forget.

It knows no transport: lanes are names. Invariant: what one connection holds no other one finds.
"""

from typing import Protocol

from antiphon.engine.continuing import make_unknown_parent
from antiphon.engine.round import Round
from antiphon.engine.unstored import HeldRound, LaneRounds, UnstoredRounds
from antiphon.protocol.errors import AntiphonError, RequestError, shorten_quoted
from antiphon.protocol.requests import CreateRequest


class OpenRound(Protocol):
    """`Engine.open_round`, as far as a connection needs it."""

    async def __call__(
        self,
        request: CreateRequest,
        tenant: str,
        *,
        zero_retention: bool,
        lane: LaneRounds | None,
        tells_errors: bool,
    ) -> Round:
        """Check a request and lay out its round."""
        ...


class Connection:
    """Made by `Engine.connect`; `close` it when the client has left."""

    def __init__(
        self, open_round: OpenRound, rounds: UnstoredRounds, tenant: str, *, zero_retention: bool
    ) -> None:
        self._open_round = open_round
        self._rounds = rounds
        self._tenant = tenant
        self._zero_retention = zero_retention

    async def open_round(self, request: CreateRequest, lane: str | None) -> Round:
        """Check a request and lay out its round, as `Engine.open_round` does; a refusal makes the lane forget.

        A request that continues a response that is not stored is not stored either; raises `RequestError` where it
        asks for that.
        """
        try:
            parent = self._find_parent(request)
            if parent is not None:
                self._stay_unstored(request)
            keeps_here = self._zero_retention or not request.store
            return await self._open_round(
                request,
                self._tenant,
                zero_retention=self._zero_retention,
                lane=LaneRounds(self._rounds, lane, parent) if keeps_here else None,
                tells_errors=False,
            )
        except AntiphonError:
            self.note_failure(request.previous_response_id, lane)
            raise

    def note_end(self, round_: Round, lane: str | None) -> None:
        """A round of the lane is over: a failed one takes along what it continued, a stored one takes its place."""
        request = round_.plan.request
        if round_.has_failed:
            self.note_failure(request.previous_response_id, lane)
        elif request.store:
            self._rounds.forget(lane)

    def note_failure(self, parent: str | None, lane: str | None) -> None:
        """A continuation of `parent` failed: its lane forgets that response, if it is its latest."""
        if parent is not None and self._rounds.stands_in(parent, lane):
            self._rounds.forget(lane)

    def close(self) -> None:
        """Forget everything."""
        self._rounds.close()

    def _find_parent(self, request: CreateRequest) -> HeldRound | None:
        parent = self._rounds.find_tip(request.previous_response_id)
        wanted = request.previous_response_id
        if parent is None and wanted is not None and self._rounds.find(wanted) is not None:
            raise make_unknown_parent(
                f"Previous response with id '{shorten_quoted(wanted)}' not found: it was not stored, and a "
                "later response of its lane has taken its place."
            )
        return parent

    def _stay_unstored(self, request: CreateRequest) -> None:
        """A stored response would need its parent in the store; of zero retention the key decides, not the request."""
        if request.store and request.store_given and not self._zero_retention:
            parent = shorten_quoted(request.previous_response_id or "")
            raise RequestError(
                f"Invalid 'store': response '{parent}' was not stored, so what continues it cannot be. Leave 'store' "
                "out or send false; or send the whole history as 'input'.",
                param="store",
                code="invalid_value",
            )
        request.store = False
