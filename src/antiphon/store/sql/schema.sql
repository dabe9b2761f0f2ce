-- The whole schema as it stands: what a fresh database is made from.
-- A test holds that it equals all migrations applied one after the other.

-- Every table and index costs a small store a page, so there are no more than the queries need.
--
-- Deletion must leave no bytes behind. SQLite overwrites what it frees, but not the copies that it leaves
-- when it moves rows between pages, which it does when rows are removed, grow, or come out of key order.
-- So rows with content (nodes, contents, slots) are only appended and are blanked in place, never removed and
-- never made longer; all other tables hold numbers, hashes and ids alone.

CREATE TABLE tenants (
    name TEXT NOT NULL PRIMARY KEY,
    key INTEGER NOT NULL
) WITHOUT ROWID;

-- Instructions, tools and request settings, each distinct one once per tenant; null once deleted.
CREATE TABLE contents (
    key INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL,
    sha256 BLOB,
    body BLOB
);
CREATE UNIQUE INDEX contents_by_hash ON contents (tenant, sha256) WHERE sha256 IS NOT NULL;

-- The combination a node was made with, so that a node carries one integer for all three.
CREATE TABLE settings (
    key INTEGER PRIMARY KEY,
    request INTEGER NOT NULL REFERENCES contents (key),
    instructions INTEGER REFERENCES contents (key),
    tools INTEGER REFERENCES contents (key)
);
CREATE INDEX settings_by_contents ON settings (request, instructions, tools);
CREATE INDEX settings_by_instructions ON settings (instructions) WHERE instructions IS NOT NULL;
CREATE INDEX settings_by_tools ON settings (tools) WHERE tools IS NOT NULL;

-- One row per node; a deleted one leaves its key, tenant, id and parent.
-- So keys only grow, a parent's key is smaller than its child's, and a path in key order starts at the root.
-- `id` holds 18 bytes for an id of the usual shape and text for any other.
-- `input`, `output` and `outcome` are packed as packing.py says; `kind` and `status` are positions in the tables of rows.py.
-- `parent` is null at a root; the check is how an insert with an unknown parent is refused in one statement.
CREATE TABLE nodes (
    key INTEGER PRIMARY KEY,
    parent INTEGER REFERENCES nodes (key) CONSTRAINT parent_is_known CHECK (parent > 0),
    deleted INTEGER NOT NULL DEFAULT 0,
    tenant INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    status INTEGER NOT NULL,
    settings INTEGER REFERENCES settings (key),
    created_at INTEGER,
    completed_at INTEGER,
    id BLOB NOT NULL,
    input BLOB,
    output BLOB,
    outcome BLOB
);
CREATE UNIQUE INDEX nodes_by_id ON nodes (id, tenant);
CREATE INDEX nodes_by_settings ON nodes (settings) WHERE settings IS NOT NULL;

-- The first 16 bytes of the SHA-256 of item ids that a client gave; not unique, the newest node wins.
CREATE TABLE client_ids (
    tenant INTEGER NOT NULL,
    item BLOB NOT NULL,
    node INTEGER NOT NULL REFERENCES nodes (key),
    position INTEGER NOT NULL,
    PRIMARY KEY (tenant, item, node, position)
) WITHOUT ROWID;
CREATE INDEX client_ids_by_node ON client_ids (node);

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
