"""What each double must be found guilty of over a WebSocket, and what it leaves open there.

The rows were taken from runs of the doubles; a change of a probe or a double is compared with them whole.
"""

SOCKET_FAILING: dict[str, frozenset[str]] = {
    "forgetful": frozenset(
        {
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.warm-up",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
            "websocket.fork-keeps-parent",
            "websocket.other-key",
        }
    ),
    "accepts-unknown-id": frozenset(
        {
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.other-key",
        }
    ),
    "forgetful-truncates": frozenset(
        {
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.warm-up",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
            "websocket.fork-keeps-parent",
            "websocket.other-key",
        }
    ),
    "stores-despite-false": frozenset(
        {"websocket.reconnect-store-false-recovery", "websocket.failed-continuation-evicts-cache"}
    ),
    "accepts-wrong-call-id": frozenset(
        {"websocket.failed-continuation-evicts-cache", "websocket.fork-keeps-parent"}
    ),
    "forgetful-counts-nothing": frozenset(
        {
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.warm-up",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
            "websocket.fork-keeps-parent",
            "websocket.other-key",
        }
    ),
    "breaks-streams": frozenset(
        {
            "websocket.response",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.failed-continuation-evicts-cache",
            "websocket.open-after-error",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.stream-tolerated",
            "websocket.steer",
            "websocket.lanes-marked",
            "websocket.lanes-together",
            "websocket.lane-order",
            "websocket.warm-up",
            "websocket.warm-up-empty",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
            "websocket.fork-keeps-parent",
            "websocket.lifecycle",
            "websocket.same-events",
        }
    ),
    "skips-created": frozenset({"websocket.lanes-together", "websocket.lane-order", "websocket.lifecycle"}),
    "numbers-from-one": frozenset({"websocket.lanes-together", "websocket.lifecycle"}),
    "ends-twice": frozenset(
        {
            "websocket.failed-continuation-evicts-cache",
            "websocket.lane-order",
            "websocket.warm-up",
            "websocket.same-events",
        }
    ),
    "shares-across-keys": frozenset({"websocket.other-key"}),
    "lacks-keys": frozenset(
        {
            "websocket.response",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.reconnect-store-false-recovery",
            "websocket.open-after-error",
            "websocket.stream-tolerated",
        }
    ),
    "odd-phase": frozenset(
        {
            "websocket.response",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.reconnect-store-false-recovery",
            "websocket.open-after-error",
            "websocket.stream-tolerated",
        }
    ),
    "breaks-upgrades": frozenset(
        {
            "endpoints.websocket",
            "events.response.steer",
            "events.response.steer.accepted",
            "events.response.steer.failed",
            "events.response.steer.pending",
        }
    ),
    "forgets-connection": frozenset(
        {
            "websocket.continuation",
            "websocket.warm-up",
            "websocket.warm-up-empty",
            "websocket.continues-unstored",
            "websocket.fork-keeps-parent",
        }
    ),
    "drops-held-history": frozenset({"websocket.warm-up", "websocket.continues-unstored"}),
    "shares-connections": frozenset({"websocket.failed-continuation-evicts-cache", "websocket.other-key"}),
    "continues-anything": frozenset(
        {
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.warm-up",
            "websocket.continues-unstored",
            "websocket.other-key",
        }
    ),
    "keeps-parent": frozenset({"websocket.failed-continuation-evicts-cache"}),
    "evicts-everywhere": frozenset({"websocket.fork-keeps-parent"}),
    "bare-socket-errors": frozenset({"websocket.error-shape"}),
    "closes-on-error": frozenset(
        {
            "websocket.failed-continuation-evicts-cache",
            "websocket.open-after-error",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.lanes-marked",
            "websocket.invalid-stream-id",
            "websocket.fork-keeps-parent",
        }
    ),
    "passes-frames-over": frozenset({"websocket.unknown-frame", "websocket.unreadable-frames"}),
    "ignores-steering": frozenset({"websocket.steer"}),
    "runs-background-frames": frozenset({"websocket.background"}),
    "refuses-stream-field": frozenset({"websocket.stream-tolerated"}),
    "leaves-lanes-out": frozenset({"websocket.lanes-marked"}),
    "leaves-lane-out-of-errors": frozenset({"websocket.lanes-marked"}),
    "mixes-lanes": frozenset({"websocket.lanes-together"}),
    "takes-last-first": frozenset({"websocket.lane-order"}),
    "takes-any-lane": frozenset({"websocket.invalid-stream-id", "websocket.stream-limit"}),
    "has-any-number-of-lanes": frozenset({"websocket.stream-limit"}),
    "generates-warm-ups": frozenset({"websocket.warm-up", "websocket.warm-up-empty"}),
    "forgets-warm-ups": frozenset({"websocket.warm-up"}),
    "wants-input-of-warm-ups": frozenset({"websocket.warm-up-empty"}),
    "forgets-stored-on-sockets": frozenset({"websocket.continues-stored"}),
    "never-stores-from-sockets": frozenset({"websocket.continued-over-http"}),
    "skips-created-on-sockets": frozenset(
        {"websocket.lanes-together", "websocket.lane-order", "websocket.lifecycle", "websocket.same-events"}
    ),
    "sends-whole-texts": frozenset({"websocket.same-events"}),
    "bare-socket-responses": frozenset(
        {
            "websocket.response",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.reconnect-store-false-recovery",
            "websocket.open-after-error",
            "websocket.stream-tolerated",
        }
    ),
}
SOCKET_UNDECIDED: dict[str, frozenset[str]] = {
    "forgetful": frozenset({"websocket.error-shape"}),
    "accepts-unknown-id": frozenset({"websocket.error-shape"}),
    "forgetful-truncates": frozenset({"websocket.error-shape"}),
    "rejects-own-items": frozenset(
        {"websocket.continues-unstored", "websocket.continues-stored", "websocket.continued-over-http"}
    ),
    "forgetful-counts-nothing": frozenset({"websocket.error-shape"}),
    "mute-counts-nothing": frozenset(
        {
            "websocket.warm-up",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
        }
    ),
    "breaks-streams": frozenset(
        {
            "events.response.steer",
            "events.response.steer.accepted",
            "events.response.steer.failed",
            "events.response.steer.pending",
            "websocket.reconnect-store-false-recovery",
            "websocket.other-key",
        }
    ),
    "skips-created": frozenset(
        {
            "events.response.steer",
            "events.response.steer.accepted",
            "events.response.steer.failed",
            "events.response.steer.pending",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.steer",
        }
    ),
    "ends-twice": frozenset(
        {
            "websocket.lanes-together",
            "websocket.stream-limit",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.fork-keeps-parent",
        }
    ),
    "takes-any-model": frozenset({"websocket.open-after-error"}),
    "forgets-fields": frozenset({"websocket.lane-order"}),
    "hollow": frozenset(
        {
            "websocket.response",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.error-shape",
            "websocket.open-after-error",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.background",
            "websocket.stream-tolerated",
            "websocket.steer",
            "websocket.lanes-marked",
            "websocket.lanes-together",
            "websocket.lane-order",
            "websocket.invalid-stream-id",
            "websocket.stream-limit",
            "websocket.warm-up",
            "websocket.warm-up-empty",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
            "websocket.fork-keeps-parent",
            "websocket.other-key",
            "websocket.lifecycle",
            "websocket.same-events",
        }
    ),
    "has-no-sockets": frozenset(
        {
            "websocket.response",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.error-shape",
            "websocket.open-after-error",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.background",
            "websocket.stream-tolerated",
            "websocket.steer",
            "websocket.lanes-marked",
            "websocket.lanes-together",
            "websocket.lane-order",
            "websocket.invalid-stream-id",
            "websocket.stream-limit",
            "websocket.warm-up",
            "websocket.warm-up-empty",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
            "websocket.fork-keeps-parent",
            "websocket.other-key",
            "websocket.lifecycle",
            "websocket.same-events",
        }
    ),
    "breaks-upgrades": frozenset(
        {
            "websocket.response",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.reconnect-store-false-recovery",
            "websocket.previous-response-not-found",
            "websocket.failed-continuation-evicts-cache",
            "websocket.error-shape",
            "websocket.open-after-error",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.background",
            "websocket.stream-tolerated",
            "websocket.steer",
            "websocket.lanes-marked",
            "websocket.lanes-together",
            "websocket.lane-order",
            "websocket.invalid-stream-id",
            "websocket.stream-limit",
            "websocket.warm-up",
            "websocket.warm-up-empty",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.continued-over-http",
            "websocket.fork-keeps-parent",
            "websocket.other-key",
            "websocket.lifecycle",
            "websocket.same-events",
        }
    ),
    "continues-anything": frozenset({"websocket.error-shape"}),
    "closes-on-error": frozenset({"websocket.reconnect-store-false-recovery", "websocket.other-key"}),
    # Whatever needs a second answer on its connection.
    "answers-one-frame": frozenset(
        {
            "events.response.steer.failed",
            "websocket.sequential-responses",
            "websocket.continuation",
            "websocket.reconnect-store-false-recovery",
            "websocket.failed-continuation-evicts-cache",
            "websocket.open-after-error",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.stream-tolerated",
            "websocket.steer",
            "websocket.lanes-marked",
            "websocket.lanes-together",
            "websocket.lane-order",
            "websocket.invalid-stream-id",
            "websocket.stream-limit",
            "websocket.warm-up",
            "websocket.warm-up-empty",
            "websocket.continues-unstored",
            "websocket.continues-stored",
            "websocket.fork-keeps-parent",
            "websocket.other-key",
        }
    ),
    "ignores-steering": frozenset(
        {
            "events.response.steer",
            "events.response.steer.accepted",
            "events.response.steer.failed",
            "events.response.steer.pending",
        }
    ),
    "leaves-lanes-out": frozenset({"websocket.lanes-together"}),
    "skips-created-on-sockets": frozenset(
        {
            "events.response.steer",
            "events.response.steer.accepted",
            "events.response.steer.failed",
            "events.response.steer.pending",
            "websocket.unknown-frame",
            "websocket.unreadable-frames",
            "websocket.steer",
        }
    ),
}
