-- Every query of the store. Each starts with its name; the comment under the name says what it is for.
-- Parameters are positional, in the order that they stand in the text.

-- name: find_tenant
-- The key of a tenant by name.
SELECT key FROM tenants WHERE name = ?;

-- name: insert_tenant
-- A tenant seen for the first time.
INSERT INTO tenants (name, key) SELECT ?, coalesce(max(key), 0) + 1 FROM tenants RETURNING key;

-- name: find_content
-- The key of a content by tenant and SHA-256.
SELECT key FROM contents WHERE tenant = ? AND sha256 = ?;

-- name: insert_content
-- A content that the tenant has not stored yet.
INSERT INTO contents (tenant, sha256, body) VALUES (?, ?, ?) RETURNING key;

-- name: find_settings
-- The key of a combination of contents; contents belong to one tenant, and so does their combination.
SELECT key FROM settings WHERE request = ? AND instructions IS ? AND tools IS ?;

-- name: insert_settings
-- A combination not stored yet.
INSERT INTO settings (request, instructions, tools) VALUES (?, ?, ?) RETURNING key;

-- name: insert_root
-- A node without a parent.
INSERT INTO nodes (tenant, kind, status, settings, created_at, completed_at, id, input, output, outcome)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_child
-- A node below another; an unknown, foreign or deleted parent becomes -1, which the table's check refuses.
INSERT INTO nodes (tenant, kind, status, settings, created_at, completed_at, id, input, output, outcome, parent)
VALUES (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    coalesce((SELECT key FROM nodes WHERE id = ? AND tenant = ? AND deleted = 0), -1)
);

-- name: insert_next
-- A node below the tip of a conversation, which is known to be there, deleted or not.
INSERT INTO nodes (tenant, kind, status, settings, created_at, completed_at, id, input, output, outcome, parent)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_client_id
-- The hash of an item id that the client gave, with the item's position in its node.
INSERT OR IGNORE INTO client_ids (tenant, item, node, position) VALUES (?, ?, ?, ?);

-- name: load_node
-- One node with its parent's id and its contents.
SELECT
    parent.id, node.kind, node.status, node.created_at, node.completed_at,
    node.input, node.output, node.outcome, request.body, instructions.body, tools.body
FROM nodes AS node
LEFT JOIN nodes AS parent ON parent.key = node.parent
JOIN settings ON settings.key = node.settings
JOIN contents AS request ON request.key = settings.request
LEFT JOIN contents AS instructions ON instructions.key = settings.instructions
LEFT JOIN contents AS tools ON tools.key = settings.tools
WHERE node.id = ? AND node.tenant = (SELECT key FROM tenants WHERE name = ?) AND node.deleted = 0;

-- name: load_path
-- The nodes from the root to a tip, root first; a deleted one is among them, flagged.
-- The walk touches keys alone, so no item bytes are copied or sorted.
WITH RECURSIVE path (key) AS (
    SELECT key FROM nodes WHERE id = ? AND tenant = (SELECT key FROM tenants WHERE name = ?)
    UNION ALL
    SELECT node.parent FROM path JOIN nodes AS node ON node.key = path.key WHERE node.parent IS NOT NULL
)
SELECT id, kind, status, input, output, deleted FROM nodes WHERE key IN (SELECT key FROM path) ORDER BY key;

-- name: find_item
-- Where an item with a client-given id stands; the newest node and the last position in it win.
SELECT nodes.id, client_ids.position
FROM client_ids
JOIN nodes ON nodes.key = client_ids.node
WHERE client_ids.tenant = (SELECT key FROM tenants WHERE name = ?) AND client_ids.item = ?
ORDER BY client_ids.node DESC, client_ids.position DESC
LIMIT 1;

-- name: load_outcomes
-- The outcomes of living nodes; the list of ids is as long as `widen_list` makes it.
SELECT id, outcome
FROM nodes
WHERE id IN (?) AND tenant = (SELECT key FROM tenants WHERE name = ?) AND deleted = 0;

-- name: find_deleted
-- The tombstones among some nodes; the list of ids is as long as `widen_list` makes it.
SELECT id
FROM nodes
WHERE id IN (?) AND tenant = (SELECT key FROM tenants WHERE name = ?) AND deleted = 1;

-- name: find_deletable
-- What a deletion needs to know of a living node.
SELECT nodes.key, nodes.tenant, settings.key, settings.request, settings.instructions, settings.tools
FROM nodes
JOIN settings ON settings.key = nodes.settings
WHERE nodes.id = ? AND nodes.tenant = (SELECT key FROM tenants WHERE name = ?) AND nodes.deleted = 0;

-- name: blank_node
-- Leaves the tombstone: key, tenant, id and parent.
UPDATE nodes
SET deleted = 1, kind = 0, status = 0, settings = NULL, created_at = NULL, completed_at = NULL,
    input = NULL, output = NULL, outcome = NULL
WHERE key = ?;

-- name: drop_client_ids
-- The item ids of a deleted node.
DELETE FROM client_ids WHERE node = ?;

-- name: drop_settings
-- A combination, unless another node was made with it.
DELETE FROM settings WHERE key = ? AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.settings = settings.key);

-- name: drop_content
-- Blanks a content, unless another combination names it.
UPDATE contents SET sha256 = NULL, body = NULL
WHERE key = ?
    AND NOT EXISTS (SELECT 1 FROM settings WHERE settings.request = contents.key)
    AND NOT EXISTS (SELECT 1 FROM settings WHERE settings.instructions = contents.key)
    AND NOT EXISTS (SELECT 1 FROM settings WHERE settings.tools = contents.key)
    AND NOT EXISTS (SELECT 1 FROM conversations WHERE conversations.metadata = contents.key);

-- name: find_items
-- What the blanking of items needs to know of a living node.
SELECT key, tenant, input, output
FROM nodes
WHERE id = ? AND tenant = (SELECT key FROM tenants WHERE name = ?) AND deleted = 0;

-- name: replace_items
-- Items with some of them blanked; the row must keep its length.
UPDATE nodes SET input = ?, output = ? WHERE key = ?;

-- name: drop_client_id
-- The ids of a blanked item.
DELETE FROM client_ids WHERE node = ? AND position = ?;

-- name: find_conversation
-- What a change needs to know of a conversation.
SELECT tenant, metadata FROM conversations WHERE id = ? AND tenant = (SELECT key FROM tenants WHERE name = ?);

-- name: insert_conversation
-- A conversation that is empty still.
INSERT INTO conversations (tenant, id, created_at, metadata) VALUES (?, ?, ?, ?);

-- name: load_conversation
-- A conversation with its metadata and the id of its tip.
SELECT conversations.created_at, contents.body, nodes.id
FROM conversations
LEFT JOIN contents ON contents.key = conversations.metadata
LEFT JOIN nodes ON nodes.key = conversations.tip
WHERE conversations.id = ? AND conversations.tenant = (SELECT key FROM tenants WHERE name = ?);

-- name: replace_metadata
-- Other metadata.
UPDATE conversations SET metadata = ? WHERE tenant = ? AND id = ?;

-- name: drop_conversation
-- The tip and its name; the nodes stay.
DELETE FROM conversations WHERE tenant = ? AND id = ?;

-- name: find_tip
-- Where a conversation is: the key and the id of its newest node, deleted or not; nulls while it is empty.
SELECT nodes.key, nodes.id
FROM conversations
LEFT JOIN nodes ON nodes.key = conversations.tip
WHERE conversations.tenant = ? AND conversations.id = ?;

-- name: move_tip
-- The conversation goes on.
UPDATE conversations SET tip = ? WHERE tenant = ? AND id = ?;

-- name: find_node
-- Whether a node was deleted; no row for one that never was.
SELECT deleted FROM nodes WHERE id = ? AND tenant = ?;

-- name: find_job
-- The status of a background response.
SELECT status FROM jobs WHERE tenant = ? AND id = ?;

-- name: insert_job
-- A background response.
INSERT INTO jobs (tenant, id, created_at, status, needs_secrets, request_bytes) VALUES (?, ?, ?, ?, ?, ?);

-- name: change_job
-- Another status, unless it has ended or never was.
UPDATE jobs SET status = ?
WHERE id = ? AND tenant = (SELECT key FROM tenants WHERE name = ?) AND status < 2;

-- name: end_job
-- It has ended; the row stays for its events.
UPDATE jobs SET status = 2, needs_secrets = 0, request_bytes = 0 WHERE tenant = ? AND id = ?;

-- name: drop_job
-- An ended background response without events.
DELETE FROM jobs WHERE tenant = ? AND id = ?;

-- name: list_open_jobs
-- What has not ended.
SELECT tenant, id FROM jobs WHERE status < 2;

-- name: load_job
-- One that has not ended, a row for each piece of its text; the same columns as `list_jobs`, tenant's name included.
SELECT
    ?, jobs.id,
    jobs.created_at, jobs.status, jobs.needs_secrets, jobs.request_bytes, pieces.bytes, slots.body
FROM jobs
JOIN pieces ON pieces.tenant = jobs.tenant AND pieces.job = jobs.id AND pieces.first = -1
JOIN slots ON slots.key = pieces.slot
WHERE jobs.id = ? AND jobs.tenant = (SELECT key FROM tenants WHERE name = ?) AND jobs.status < 2
ORDER BY pieces.position;

-- name: list_jobs
-- All that have not ended, oldest first, a row for each piece of their texts.
-- The order of the joins is given, for SQLite would rather go through the pieces of all events.
SELECT
    tenants.name, jobs.id,
    jobs.created_at, jobs.status, jobs.needs_secrets, jobs.request_bytes, pieces.bytes, slots.body
FROM tenants
CROSS JOIN jobs ON jobs.tenant = tenants.key
CROSS JOIN pieces ON pieces.tenant = jobs.tenant AND pieces.job = jobs.id AND pieces.first = -1
CROSS JOIN slots ON slots.key = pieces.slot
WHERE jobs.status < 2
ORDER BY jobs.created_at, jobs.id, jobs.tenant, pieces.position;

-- name: find_last_event
-- The number of the newest event, -1 when there is none but a request.
SELECT last FROM pieces WHERE tenant = ? AND job = ? ORDER BY first DESC LIMIT 1;

-- name: load_events
-- The chunks with events above a number, a row for each piece.
SELECT pieces.first, pieces.last, pieces.bytes, slots.body
FROM pieces
JOIN slots ON slots.key = pieces.slot
WHERE pieces.job = ? AND pieces.tenant = (SELECT key FROM tenants WHERE name = ?)
    AND pieces.first >= 0 AND pieces.last > ?
ORDER BY pieces.first, pieces.position;

-- name: list_events
-- Ended background responses with events, and when they were completed or created.
SELECT tenants.name, jobs.id, coalesce(nodes.completed_at, nodes.created_at)
FROM jobs
JOIN tenants ON tenants.key = jobs.tenant
JOIN nodes ON nodes.id = jobs.id AND nodes.tenant = jobs.tenant
WHERE jobs.status = 2 AND EXISTS (SELECT 1 FROM pieces WHERE pieces.tenant = jobs.tenant AND pieces.job = jobs.id)
ORDER BY coalesce(nodes.completed_at, nodes.created_at), jobs.id;

-- name: find_free_slots
-- Slots to use again, the first ones first.
SELECT slot FROM pieces WHERE tenant = 0 AND job = 0 AND first = 0 ORDER BY position LIMIT ?;

-- name: insert_slot
-- One more slot; it is free.
INSERT INTO slots (body) VALUES (zeroblob(?));

-- name: insert_piece
-- One more slot is free.
INSERT INTO pieces (tenant, job, first, position, last, bytes, slot) VALUES (0, 0, 0, ?, 0, 0, ?);

-- name: fill_slot
-- A piece of a text, as long as any other.
UPDATE slots SET body = ? WHERE key = ?;

-- name: take_slot
-- A free slot belongs to a text now.
UPDATE pieces SET tenant = ?, job = ?, first = ?, position = ?, last = ?, bytes = ?
WHERE tenant = 0 AND job = 0 AND first = 0 AND position = ?;

-- name: blank_slots
-- Overwrites the texts of a job whose `first` lies between two numbers.
UPDATE slots SET body = zeroblob(length(body))
WHERE key IN (SELECT slot FROM pieces WHERE tenant = ? AND job = ? AND first BETWEEN ? AND ?);

-- name: free_slots
-- The slots of these texts are free again.
UPDATE pieces SET tenant = 0, job = 0, first = 0, position = slot, last = 0, bytes = 0
WHERE tenant = ? AND job = ? AND first BETWEEN ? AND ?;

-- name: write_check
-- A harmless write that reaches the file like any other; content 0 does not exist.
INSERT INTO settings (request) VALUES (0);

-- name: undo_check
-- Takes the harmless write back.
DELETE FROM settings WHERE request = 0;

-- name: read_check
-- A harmless read.
SELECT count(*) FROM tenants;
