-- Every statement, by name. now_us() is the file's clock, read after the lock was taken: whether a
-- lease has ended is decided in the same step that acts on it. {queue} is a queue's id and {base},
-- {mid} and {top} bound its numbers (see schema.sql): a Store fills them in once. Any other name in
-- braces stands for the statement, or the part of one, of that name; {far} is further ahead than any
-- time of ours. {table} and {column} are filled in by unreadable.py, from the schema.

-- name: find_queue
SELECT id FROM queue WHERE name = ?

-- name: add_queue
INSERT INTO queue (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: queues
SELECT name FROM queue ORDER BY name

-- name: put
INSERT INTO waiting (
    seq, queue, again, given, sent_us, enqueued_at, deliveries, nacks, first_received_at, id, payload,
    put_offs, reply
)
VALUES (
    ({next_place}),
    {queue}, 0, 0, now_us(), ?1, 0, 0, ?1, ?2, ?3, 0, ?4
)

-- name: next_place
SELECT 1 + max(
    {base},
    ifnull((SELECT max(seq) FROM hole WHERE seq > {base} AND seq < {mid}), 0),
    coalesce(
        (SELECT max(seq) FROM waiting WHERE seq > {base} AND seq < {mid}),
        max(
            ifnull((SELECT max(seq) FROM held WHERE seq > {base} AND seq < {mid}), 0),
            ({indexed_to})
        )
    )
)

-- name: next_delayed_place
SELECT 1 + max({mid}, ifnull((SELECT max(seq) FROM held WHERE seq > {mid} AND seq < {top}), 0))

-- name: put_at
INSERT INTO waiting (
    seq, queue, again, given, sent_us, enqueued_at, deliveries, nacks, first_received_at, id, payload,
    put_offs, reply
)
VALUES (?1, {queue}, 0, ?2, ?3, ?4, 0, 0, ?4, ?5, ?6, 0, ?7)

-- name: put_delayed
INSERT INTO held (
    seq, queue, visible_us, leased, token, given, sent_us, enqueued_at, deliveries, nacks,
    first_received_at, id, payload, put_offs, reply, cancelled
)
VALUES (?1, {queue}, ?8, 0, NULL, ?2, ?3, ?4, 0, 0, ?4, ?5, ?6, 0, ?7, 0)

-- name: forget_ids
DELETE FROM known WHERE (queue, id) IN (SELECT queue, id FROM known WHERE sent_us <= ? LIMIT 1000)

-- name: is_known
SELECT EXISTS (SELECT 1 FROM known WHERE queue = {queue} AND id = ?1 AND sent_us > ?2)
    OR EXISTS (SELECT 1 FROM waiting WHERE id = ?1 AND queue = {queue} AND given = 1)
    OR EXISTS (SELECT 1 FROM held WHERE id = ?1 AND queue = {queue} AND given = 1)

-- name: remember_id
INSERT INTO known (queue, id, sent_us) VALUES ({queue}, ?1, ?2)
ON CONFLICT DO UPDATE SET sent_us = excluded.sent_us

-- name: count
SELECT
    ifnull((SELECT max(seq) FROM waiting WHERE seq > {base} AND seq < {mid})
        - (SELECT min(seq) FROM waiting WHERE seq > {base} AND seq < {mid}) + 1, 0)
    - (SELECT count(*) FROM hole
        WHERE seq > (SELECT min(seq) FROM waiting WHERE seq > {base} AND seq < {mid})
        AND seq < (SELECT max(seq) FROM waiting WHERE seq > {base} AND seq < {mid}))

-- name: most_held
SELECT ifnull((SELECT max(seq) FROM held WHERE seq > {base} AND seq < {mid})
        - (SELECT min(seq) FROM held WHERE seq > {base} AND seq < {mid}) + 1, 0)
    + ifnull((SELECT max(seq) FROM held WHERE seq > {mid} AND seq < {top})
        - (SELECT min(seq) FROM held WHERE seq > {mid} AND seq < {top}) + 1, 0)

-- name: count_held
SELECT (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 0)
    + (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 2)
    + (SELECT count(*) FROM held WHERE seq > ({indexed_to}) AND seq < {mid} AND leased = 1)

-- name: held_due
SELECT * FROM (
    SELECT seq, 0 AS leased, visible_us, sent_us, 0 AS cancelled FROM held
    WHERE queue = {queue} AND leased = 0 AND visible_us <= ?1
    ORDER BY visible_us, sent_us, seq LIMIT 1000)
UNION ALL SELECT * FROM (
    SELECT seq, 1, visible_us, sent_us, cancelled IS 1 FROM held
    WHERE queue = {queue} AND leased = 2 AND visible_us <= ?1
    ORDER BY visible_us, sent_us, seq LIMIT 1000)
UNION ALL SELECT seq, 1, visible_us, sent_us, cancelled IS 1 FROM held
    WHERE ?2 AND seq > ({indexed_to}) AND seq < {mid} AND leased = 1
        AND (visible_us <= ?1 OR visible_us > ?1 + {far})

-- name: end_odd_times
UPDATE held SET visible_us = ?1
WHERE queue = {queue} AND leased = ?2 AND visible_us > ?1 + {far}

-- name: forget_odd_ids
DELETE FROM known WHERE sent_us > ? + {far}

-- name: indexed_to
SELECT iif(indexed_to BETWEEN {base} AND {mid}, CAST(indexed_to AS INTEGER), {base})
FROM queue WHERE id = {queue}

-- name: front
SELECT ifnull(
    (SELECT min(seq) FROM waiting WHERE seq > {base} AND seq < {mid}),
    (SELECT 1 + max(seq) FROM held WHERE seq > {base} AND seq < {mid}))

-- name: index_leases
UPDATE held SET leased = 2 WHERE seq IN (
    SELECT seq FROM held WHERE seq > ({indexed_to}) AND seq < ?1 AND leased = 1
    ORDER BY seq LIMIT ?2)
RETURNING seq

-- name: note_indexed
UPDATE queue SET indexed_to = ?1 WHERE id = {queue} AND indexed_to < ?1

-- name: unindex
UPDATE queue SET indexed_to = ?1 - 1 WHERE id = {queue} AND indexed_to >= ?1

-- name: stats
SELECT
    ({count}),
    (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 0 AND visible_us <= ?1)
    + (SELECT count(*) FROM held
        WHERE queue = {queue} AND leased = 2 AND visible_us <= ?1 AND cancelled IS NOT 1)
    + fresh.due,
    (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 2 AND visible_us > ?1)
    + fresh.live,
    (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 0 AND visible_us > ?1),
    (SELECT min(sent_us) FROM (
        SELECT sent_us FROM (
            SELECT sent_us FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT 1)
        UNION ALL SELECT min(sent_us) FROM waiting WHERE queue = {queue} AND again = 1
        UNION ALL SELECT min(sent_us) FROM held
            WHERE queue = {queue} AND leased = 0 AND visible_us <= ?1
        UNION ALL SELECT min(sent_us) FROM held
            WHERE queue = {queue} AND leased = 2 AND visible_us <= ?1 AND cancelled IS NOT 1
        UNION ALL SELECT fresh.oldest)),
    (SELECT count(*) FROM held WHERE seq > {base} AND seq < {top})
    - (SELECT count(*) FROM held
        WHERE queue = {queue} AND leased = 2 AND visible_us <= ?1 AND cancelled IS 1)
    - fresh.cancelled
FROM (
    SELECT count(*) FILTER (
            WHERE (visible_us <= ?1 OR visible_us > ?1 + {far}) AND cancelled IS NOT 1) AS due,
        count(*) FILTER (
            WHERE (visible_us <= ?1 OR visible_us > ?1 + {far}) AND cancelled IS 1) AS cancelled,
        count(*) FILTER (WHERE visible_us > ?1 AND visible_us <= ?1 + {far}) AS live,
        min(sent_us) FILTER (WHERE visible_us <= ?1 AND cancelled IS NOT 1) AS oldest
    FROM held WHERE seq > ({indexed_to}) AND seq < {mid} AND leased = 1) AS fresh

-- name: peek
SELECT id, payload, deliveries, nacks, enqueued_at
FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT ? OFFSET ?

-- name: peek_due
SELECT id, payload, deliveries, nacks, enqueued_at
FROM (SELECT * FROM ({held_due}) WHERE NOT cancelled
        ORDER BY visible_us, leased, sent_us, seq LIMIT ?3 OFFSET ?4) AS due
    JOIN held USING (seq)
ORDER BY due.visible_us, due.leased, due.sent_us, seq

-- name: due
SELECT seq, leased, cancelled FROM ({held_due}) ORDER BY visible_us, leased, sent_us, seq LIMIT 1000

-- name: promote
INSERT INTO waiting (
    seq, queue, again, given, sent_us, enqueued_at, deliveries, nacks, first_received_at, id, payload,
    put_offs, reply
)
SELECT ?1, queue, 1, given, sent_us, enqueued_at, deliveries, nacks, first_received_at, id, payload,
    put_offs, reply
FROM held WHERE seq = ?2

-- name: unhold
DELETE FROM held WHERE seq = ?

-- name: take
INSERT INTO held (
    seq, queue, visible_us, leased, token, given, sent_us, enqueued_at, deliveries, nacks,
    first_received_at, id, payload, put_offs, reply, cancelled
)
SELECT seq, queue, ?1, ?4, random(), given, sent_us, enqueued_at, deliveries + 1, nacks,
    iif(deliveries, first_received_at, ?2), id, payload, put_offs, reply, 0
FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT ?3
RETURNING seq, token, id, payload, deliveries, nacks, enqueued_at, first_received_at, put_offs,
    reply

-- name: take_one
INSERT INTO held (
    seq, queue, visible_us, leased, token, given, sent_us, enqueued_at, deliveries, nacks,
    first_received_at, id, payload, put_offs, reply, cancelled
)
SELECT seq, queue, ?1, 1, random(), given, sent_us, enqueued_at, deliveries + 1, nacks,
    iif(deliveries, first_received_at, ?2), id, payload, put_offs, reply, 0
FROM waiting WHERE seq = ?3
RETURNING seq, token, id, payload, deliveries, nacks, enqueued_at, first_received_at, put_offs,
    reply

-- name: leave_line
DELETE FROM waiting WHERE seq >= ?1 AND seq <= ?2

-- name: first_in_line
SELECT seq, sent_us FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT ?

-- name: place_of_given
SELECT seq FROM waiting WHERE id = ? AND queue = {queue} AND given = 1

-- name: line
SELECT seq, id FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq

-- name: add_hole
INSERT INTO hole (seq) VALUES (?) ON CONFLICT DO NOTHING

-- name: forget_holes
DELETE FROM hole WHERE seq > {base} AND seq < ifnull(
    (SELECT min(seq) FROM waiting WHERE seq > {base} AND seq < {mid}),
    (SELECT max(seq) FROM hole WHERE seq > {base} AND seq < {mid}))

-- name: next_due
SELECT
    (SELECT min(visible_us) FROM held WHERE queue = {queue} AND leased = 0),
    (SELECT min(visible_us) FROM held WHERE queue = {queue} AND leased = 2),
    fresh.first,
    fresh.number
FROM (
    SELECT min(iif(leased = 1, iif(visible_us > ?2 + {far}, ?2, visible_us), NULL)) AS first,
        count(*) AS number
    FROM held WHERE ?1 AND seq > ({indexed_to}) AND seq < {mid}) AS fresh

-- name: acknowledge
DELETE FROM held WHERE seq = ? AND token = ? AND visible_us > now_us()

-- name: acknowledge_at
DELETE FROM held WHERE seq = ?1 AND token = ?2 AND visible_us > ?3

-- name: give_back
INSERT INTO waiting (
    seq, queue, again, given, sent_us, enqueued_at, deliveries, nacks, first_received_at, id, payload,
    put_offs, reply
)
SELECT ({next_place}), queue, 1, given, sent_us, enqueued_at, deliveries, nacks + 1,
    first_received_at, id, payload, put_offs + ?3, reply
FROM held WHERE seq = ?1 AND token = ?2 AND queue = {queue} AND visible_us > now_us()
    AND cancelled IS NOT 1

-- name: release
UPDATE held SET seq = ({next_delayed_place}), visible_us = now_us() + ?3, leased = 0, token = NULL,
    deliveries = deliveries - ?4, nacks = nacks + ?5, put_offs = put_offs + ?6
WHERE seq = ?1 AND token = ?2 AND visible_us > now_us() AND cancelled IS NOT 1

-- name: undo
INSERT INTO waiting (
    seq, queue, again, given, sent_us, enqueued_at, deliveries, nacks, first_received_at, id, payload,
    put_offs, reply
)
SELECT ?3, queue, 1, given, sent_us, enqueued_at, deliveries - 1, nacks, first_received_at, id,
    payload, put_offs, reply
FROM held WHERE seq = ?1 AND token = ?2 AND queue = {queue} AND visible_us > now_us()
    AND cancelled IS NOT 1

-- name: next_in_line
SELECT min(seq) FROM waiting WHERE seq > max(?1, {base}) AND seq < {mid}

-- name: is_first
SELECT NOT EXISTS (SELECT 1 FROM waiting WHERE seq > {base} AND seq < ?1)

-- name: fill_hole
DELETE FROM hole WHERE seq = ?

-- name: extend
UPDATE held SET visible_us = now_us() + ?3 WHERE seq = ?1 AND token = ?2 AND visible_us > now_us()

-- name: drop_cancelled
DELETE FROM held WHERE seq = ?1 AND token = ?2 AND visible_us > now_us() AND cancelled IS 1

-- name: find_message
SELECT seq FROM waiting WHERE id = ?1 AND queue = {queue} AND given = 1
UNION ALL SELECT seq FROM held WHERE id = ?1 AND queue = {queue} AND given = 1
UNION ALL SELECT seq FROM held WHERE seq > {base} AND seq < {top} AND +id = ?1
UNION ALL SELECT seq FROM waiting WHERE seq > {base} AND seq < {mid} AND +id = ?1
LIMIT 1

-- name: payload_in_line
SELECT payload FROM waiting WHERE seq = ?1 AND id = ?2 AND queue = {queue}

-- name: payload_held
SELECT payload, cancelled IS 1, leased = 0 OR visible_us <= now_us()
FROM held WHERE seq = ?1 AND id = ?2 AND queue = {queue}

-- name: mark_cancelled
UPDATE held SET cancelled = 1 WHERE seq = ?

-- name: lease_states
SELECT held.seq, held.token, held.cancelled IS 1
FROM json_each(?1) AS place CROSS JOIN held ON held.seq = place.value
WHERE held.visible_us > now_us()

-- name: purge_waiting
DELETE FROM waiting WHERE seq > {base} AND seq < {mid}

-- name: purge_held
DELETE FROM held WHERE seq > {base} AND seq < {top}

-- name: forget_soon
UPDATE known SET sent_us = now_us() WHERE queue = {queue} AND id = ? AND sent_us > now_us()

-- name: purge_known
DELETE FROM known WHERE queue = {queue}

-- name: ready
SELECT ifnull(
        (SELECT max(seq) FROM waiting WHERE seq > queue.id << 40 AND seq < (queue.id << 40) + (1 << 39))
        - (SELECT min(seq) FROM waiting WHERE seq > queue.id << 40 AND seq < (queue.id << 40) + (1 << 39))
        + 1, 0)
    + (SELECT count(*) FROM (
        SELECT 1 FROM held
        WHERE queue = queue.id AND leased = 0 AND visible_us <= now_us() LIMIT 1000))
FROM queue WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM paused_queue WHERE paused_queue.name = ?1)

-- name: reply_columns
state, payload, created_us, expires_us, resolved_us, owner, ttl_us, keep_us, handle, worker,
deliveries, started_at, series, parts

-- name: reply_create
INSERT INTO reply (id, state, created_us, expires_us, owner, ttl_us, keep_us)
VALUES (?1, 'pending', now_us(), now_us() + ?2, ?3, ?2, ?4) ON CONFLICT DO NOTHING

-- name: reply_reopen
INSERT INTO reply (id, state, created_us, expires_us, owner, ttl_us, keep_us)
VALUES (?1, 'pending', now_us(), now_us() + ?2, ?3, ?2, ?4)
ON CONFLICT DO UPDATE SET state = 'pending', payload = NULL, resolved_us = NULL,
    created_us = excluded.created_us, expires_us = excluded.expires_us, owner = excluded.owner,
    ttl_us = excluded.ttl_us, keep_us = excluded.keep_us,
    handle = NULL, worker = NULL, deliveries = 0, started_at = 0
WHERE NOT (state IN ('resolved', 'cancelled') AND expires_us > now_us())

-- name: reply_start
UPDATE reply SET handle = ?3, worker = ?4, deliveries = ?5, started_at = ?6, series = series + 1
WHERE id = ?1 AND state = 'pending' AND expires_us > now_us() AND (owner IS NULL OR owner = ?2)
    AND (handle IS NULL OR deliveries <= ?5)
RETURNING {reply_columns}

-- name: reply_resolve
UPDATE reply SET state = ?5, payload = ?2, resolved_us = now_us(),
    expires_us = iif(keep_us > 0, now_us() + max(keep_us, ?3), max(expires_us, now_us() + ?3))
WHERE id = ?1 AND state = 'pending' AND expires_us > now_us()
    AND (owner IS NULL OR ?4 IS NULL OR owner = ?4)

-- name: reply_cancel
UPDATE reply SET state = 'cancelled', resolved_us = now_us(),
    expires_us = iif(keep_us > 0, now_us() + max(keep_us, ?2), expires_us)
WHERE id = ?1 AND state = 'pending' AND expires_us > now_us()

-- name: reply_get
SELECT {reply_columns} FROM reply WHERE id = ?

-- name: reply_consume
DELETE FROM reply WHERE id = ? AND state = 'resolved' AND expires_us > now_us()
RETURNING {reply_columns}

-- name: reply_delete
DELETE FROM reply WHERE id = ?

-- name: reply_read_until
expires_us + iif(state = 'pending', min(keep_us, {far}), 0)

-- name: reply_expired
SELECT id FROM reply WHERE {reply_read_until} <= now_us() OR expires_us > now_us() + {far} LIMIT ?

-- name: reply_cleanup
DELETE FROM reply WHERE id IN (
    SELECT id FROM reply
    WHERE {reply_read_until} <= now_us() OR expires_us > now_us() + {far} LIMIT ?)

-- name: reply_some
SELECT max(id) FROM (SELECT id FROM reply WHERE id > ?1 ORDER BY id LIMIT ?2)

-- name: reply_sweep
DELETE FROM reply WHERE id > ?1 AND id <= ?2
    AND ({reply_read_until} <= now_us() - ?3 OR expires_us > now_us() + {far})

-- name: reply_news
SELECT ifnull(
    (SELECT iif(state = 'pending', 1 + parts, -created_us) FROM reply WHERE id = ?), -1)

-- name: reply_emitting
SELECT series, parts, part_bytes FROM reply
WHERE id = ?1 AND state = 'pending' AND expires_us > now_us() AND (owner IS NULL OR owner = ?2)
    AND handle = ?3

-- name: add_part
INSERT OR REPLACE INTO reply_part (reply, number, series, bytes_before, payload)
VALUES (?, ?, ?, ?, ?)

-- name: note_parts
UPDATE reply SET parts = ?2, part_bytes = ?3 WHERE id = ?1

-- name: drop_parts
DELETE FROM reply_part WHERE reply = ?1 AND number < max(?2, ifnull(
    (SELECT number FROM reply_part WHERE reply = ?1 AND bytes_before >= ?3
        ORDER BY number LIMIT 1), ?2))

-- name: parts
SELECT number, series, payload FROM reply_part
WHERE reply = ?1 AND number >= ?2 ORDER BY number LIMIT ?3

-- name: era
SELECT boot, shift_us, wall_offset_us, seen_us FROM era

-- name: set_era
INSERT OR REPLACE INTO era (id, boot, shift_us, wall_offset_us, seen_us) VALUES (1, ?, ?, ?, ?)

-- name: note_time
UPDATE era SET seen_us = max(seen_us, ?)

-- name: note_wall_offset
UPDATE era SET wall_offset_us = ?

-- name: end_all_leases
UPDATE held SET visible_us = now_us() WHERE leased > 0

-- name: count_tables
SELECT count(*) FROM sqlite_schema

-- name: texts
SELECT DISTINCT CAST({column} AS BLOB) FROM {table} WHERE typeof({column}) = 'text'

-- name: make_bytes
UPDATE OR REPLACE {table} SET {column} = CAST({column} AS BLOB) WHERE {column} = CAST(? AS TEXT)

-- name: worker_write
INSERT INTO worker (id, written_us, expires_us, entry)
VALUES (?1, now_us(), now_us() + ?2, ?3)
ON CONFLICT DO UPDATE SET written_us = excluded.written_us, expires_us = excluded.expires_us,
    entry = excluded.entry

-- name: worker_expire
DELETE FROM worker WHERE expires_us <= now_us() OR expires_us > now_us() + {far}

-- name: worker_remove
DELETE FROM worker WHERE id = ?

-- name: workers
SELECT entry, now_us() - written_us FROM worker
WHERE expires_us > now_us() AND expires_us <= now_us() + {far}
    AND typeof(entry) = 'blob' AND typeof(written_us) = 'integer'
ORDER BY expires_us DESC LIMIT 10000

-- name: pause
INSERT INTO paused_queue (name, note) VALUES (?1, ?2)
ON CONFLICT DO UPDATE SET note = excluded.note

-- name: resume
DELETE FROM paused_queue WHERE name = ?

-- name: is_paused
SELECT 1 FROM paused_queue WHERE name = ?

-- name: paused
SELECT name, note FROM paused_queue ORDER BY name
