"""What each double must be found guilty of in compaction, and what it leaves open there.

The rows were taken from runs of the doubles, as those of the sockets were.
"""

COMPACTION_FAILING: dict[str, frozenset[str]] = {
    "forgetful": frozenset(
        {
            "compaction.trigger-by-id",
            "compaction.trigger-websocket",
            "compaction.continues",
            "compaction.compact-by-id",
            "compaction.compact-stateless",
            "compaction.context-drops",
        }
    ),
    "accepts-unknown-id": frozenset({"compaction.compact-stateless"}),
    "truncates-silently": frozenset(
        {
            "fields.context_management.type",
            "fields.context_management.compact_threshold",
            "compaction.compact-shape",
            "compaction.context-first",
            "compaction.context-drops",
        }
    ),
    "truncates-openly": frozenset(
        {
            "fields.context_management.type",
            "fields.context_management.compact_threshold",
            "compaction.compact-shape",
            "compaction.context-first",
            "compaction.context-drops",
        }
    ),
    "forgetful-truncates": frozenset(
        {
            "fields.context_management.type",
            "fields.context_management.compact_threshold",
            "compaction.trigger-by-id",
            "compaction.trigger-websocket",
            "compaction.compact-shape",
            "compaction.compact-by-id",
            "compaction.compact-stateless",
            "compaction.context-first",
            "compaction.context-drops",
        }
    ),
    "rejects-own-items": frozenset(
        {
            "websocket.compact-new-chain",
            "compaction.store-false",
            "compaction.other-key",
            "compaction.compact-continues",
        }
    ),
    "input-items-empty": frozenset({"items.compaction", "items.compaction_summary"}),
    "counts-nothing": frozenset({"open-responses.compact-response", "compaction.compact-shape"}),
    "forgetful-counts-nothing": frozenset(
        {
            "open-responses.compact-response",
            "compaction.trigger-by-id",
            "compaction.trigger-websocket",
            "compaction.continues",
            "compaction.compact-shape",
            "compaction.compact-by-id",
            "compaction.compact-stateless",
            "compaction.context-drops",
        }
    ),
    "mute-counts-nothing": frozenset({"open-responses.compact-response", "compaction.compact-shape"}),
    "breaks-streams": frozenset(
        {
            "items.compaction_trigger",
            "websocket.compact-new-chain",
            "compaction.trigger-stream",
            "compaction.context-first",
        }
    ),
    "ends-twice": frozenset({"compaction.trigger-websocket"}),
    "changes-ids": frozenset({"compaction.trigger-stream"}),
    "bare-errors": frozenset(
        {
            "endpoints.stored-item",
            "endpoints.item-range",
            "compaction.trigger-once",
            "compaction.trigger-last",
            "compaction.trigger-budget",
            "compaction.broken-seal",
            "compaction.other-key",
            "compaction.compact-rejects",
            "compaction.context-type",
            "compaction.context-threshold",
            "compaction.context-shape",
        }
    ),
    "short-errors": frozenset(
        {
            "compaction.trigger-once",
            "compaction.trigger-last",
            "compaction.trigger-budget",
            "compaction.context-type",
            "compaction.context-threshold",
            "compaction.context-shape",
        }
    ),
    "ignores-unknown-fields": frozenset({"fields.antiphon.marks", "fields.antiphon.method"}),
    "shares-across-keys": frozenset({"compaction.other-key"}),
    "hollow": frozenset({"endpoints.stored-item", "endpoints.item-range"}),
    "finds-any-response": frozenset({"compaction.compact-stateless"}),
    "lacks-keys": frozenset({"websocket.compact-new-chain"}),
    "odd-phase": frozenset({"websocket.compact-new-chain"}),
    "forgets-connection": frozenset({"compaction.trigger-websocket"}),
    "drops-held-history": frozenset({"compaction.trigger-websocket"}),
    "continues-anything": frozenset({"compaction.trigger-websocket"}),
    "bare-socket-responses": frozenset({"websocket.compact-new-chain"}),
}
COMPACTION_UNDECIDED: dict[str, frozenset[str]] = {
    "forgetful": frozenset({"items.compaction", "items.compaction_summary", "compaction.trigger-unlisted"}),
    "truncates-silently": frozenset(
        {
            "compaction.continues",
            "compaction.store-false",
            "compaction.again",
            "compaction.other-model",
            "compaction.compact-continues",
        }
    ),
    "truncates-openly": frozenset(
        {
            "compaction.continues",
            "compaction.store-false",
            "compaction.again",
            "compaction.other-model",
            "compaction.compact-continues",
        }
    ),
    "forgetful-truncates": frozenset(
        {
            "items.compaction",
            "items.compaction_summary",
            "compaction.trigger-unlisted",
            "compaction.continues",
            "compaction.store-false",
            "compaction.again",
            "compaction.other-model",
            "compaction.compact-continues",
        }
    ),
    "overflows": frozenset(
        {
            "fields.context_management.type",
            "fields.context_management.compact_threshold",
            "compaction.continues",
            "compaction.store-false",
            "compaction.supersedes",
            "compaction.alias",
            "compaction.again",
            "compaction.other-model",
            "compaction.compact-shape",
            "compaction.compact-continues",
            "compaction.context-first",
            "compaction.context-drops",
        }
    ),
    "rejects-own-items": frozenset(
        {
            "compaction.trigger-by-id",
            "compaction.trigger-websocket",
            "compaction.supersedes",
            "compaction.alias",
            "compaction.again",
            "compaction.other-model",
            "compaction.compact-by-id",
            "compaction.context-drops",
        }
    ),
    "counts-nothing": frozenset({"compaction.supersedes", "compaction.alias", "compaction.context-drops"}),
    "forgetful-counts-nothing": frozenset(
        {
            "items.compaction",
            "items.compaction_summary",
            "compaction.trigger-unlisted",
            "compaction.supersedes",
            "compaction.alias",
        }
    ),
    "mute": frozenset(
        {
            "compaction.trigger-by-id",
            "compaction.trigger-websocket",
            "compaction.continues",
            "compaction.store-false",
            "compaction.again",
            "compaction.other-model",
            "compaction.compact-continues",
            "compaction.compact-by-id",
            "compaction.context-first",
            "compaction.context-drops",
        }
    ),
    "mute-counts-nothing": frozenset(
        {
            "compaction.trigger-by-id",
            "compaction.trigger-websocket",
            "compaction.continues",
            "compaction.store-false",
            "compaction.supersedes",
            "compaction.alias",
            "compaction.again",
            "compaction.other-model",
            "compaction.compact-continues",
            "compaction.compact-by-id",
            "compaction.context-first",
            "compaction.context-drops",
        }
    ),
    "breaks-streams": frozenset(
        {
            "events.response.compaction.compacting",
            "compaction.trigger-once",
            "compaction.trigger-last",
            "compaction.trigger-budget",
            "compaction.trigger-by-id",
            "compaction.trigger-unlisted",
            "compaction.trigger-websocket",
            "compaction.continues",
            "compaction.store-false",
            "compaction.supersedes",
            "compaction.alias",
            "compaction.again",
            "compaction.other-model",
            "compaction.broken-seal",
            "compaction.other-key",
        }
    ),
    "hollow": frozenset({"websocket.compact-new-chain", "compaction.trigger-websocket"}),
    "has-no-sockets": frozenset({"websocket.compact-new-chain", "compaction.trigger-websocket"}),
    "breaks-upgrades": frozenset({"websocket.compact-new-chain", "compaction.trigger-websocket"}),
    "answers-one-frame": frozenset({"compaction.trigger-websocket"}),
}
