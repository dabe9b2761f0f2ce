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

-- name: find_deletable
-- What a deletion needs to know of a living node.
SELECT nodes.key, settings.key, settings.request, settings.instructions, settings.tools
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
    AND NOT EXISTS (SELECT 1 FROM settings WHERE settings.tools = contents.key);

-- name: write_check
-- A harmless write that reaches the file like any other; content 0 does not exist.
INSERT INTO settings (request) VALUES (0);

-- name: undo_check
-- Takes the harmless write back.
DELETE FROM settings WHERE request = 0;

-- name: read_check
-- A harmless read.
SELECT count(*) FROM tenants;
