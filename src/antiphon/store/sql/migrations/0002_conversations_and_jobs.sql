-- Conversations, background responses that have not ended, and the events of background responses.

-- A durable tip. `metadata` is null for {}, `tip` while the conversation is empty; a deleted one is removed.
CREATE TABLE conversations (
    tenant INTEGER NOT NULL,
    id BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    metadata INTEGER REFERENCES contents (key),
    tip INTEGER REFERENCES nodes (key),
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX conversations_by_metadata ON conversations (metadata) WHERE metadata IS NOT NULL;

-- One row per background response that has not ended, or whose events are kept; `id` is that of its node to be.
CREATE TABLE jobs (
    tenant INTEGER NOT NULL,
    id BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    status INTEGER NOT NULL,
    needs_secrets INTEGER NOT NULL,
    request_bytes INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) WITHOUT ROWID;

-- The content of jobs and of their events, in pieces of one length, so that a piece whose time is over is
-- overwritten in place and used again; rows are never removed.
CREATE TABLE slots (
    key INTEGER PRIMARY KEY,
    body BLOB NOT NULL
);

-- Which slots hold a text, in order: events `first` to `last` of a job, or with -1 its request and snapshot.
-- `bytes` is the length of the whole text. Free slots are those of tenant 0, with `position` = `slot`.
CREATE TABLE pieces (
    tenant INTEGER NOT NULL,
    job BLOB NOT NULL,
    first INTEGER NOT NULL,
    position INTEGER NOT NULL,
    last INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    slot INTEGER NOT NULL REFERENCES slots (key),
    PRIMARY KEY (tenant, job, first, position)
) WITHOUT ROWID;
