-- Every statement, by name. now_us() is the file's clock, read after the lock was taken: whether a
-- lease has ended is decided in the same step that acts on it. {queue} is a queue's id and {base},
-- {mid} and {top} bound its numbers (see schema.sql): a Store fills them in once. {next_place},
-- {count} and {held_due} stand for the statements of that name.

-- name: find_queue
SELECT id FROM queue WHERE name = ?

-- name: add_queue
INSERT INTO queue (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: queues
SELECT name FROM queue ORDER BY name

-- name: put
INSERT INTO waiting VALUES (
    ({next_place}),
    {queue}, 0, 0, now_us(), ?1, 0, 0, ?1, ?2, ?3
)

-- name: next_place
SELECT 1 + max(
    {base},
    ifnull((SELECT max(seq) FROM hole WHERE seq > {base} AND seq < {mid}), 0),
    coalesce(
        (SELECT max(seq) FROM waiting WHERE seq > {base} AND seq < {mid}),
        (SELECT max(seq) FROM held WHERE seq > {base} AND seq < {mid}),
        0
    )
)

-- name: next_delayed_place
SELECT 1 + max({mid}, ifnull((SELECT max(seq) FROM held WHERE seq > {mid} AND seq < {top}), 0))

-- name: put_at
INSERT INTO waiting VALUES (?1, {queue}, 0, ?2, ?3, ?4, 0, 0, ?4, ?5, ?6)

-- name: put_delayed
INSERT INTO held VALUES (?1, {queue}, ?7, 0, NULL, ?2, ?3, ?4, 0, 0, ?4, ?5, ?6)

-- name: forget_ids
DELETE FROM known WHERE (queue, id) IN (SELECT queue, id FROM known WHERE sent_us <= ? LIMIT 1000)

-- name: is_known
SELECT EXISTS (SELECT 1 FROM known WHERE queue = {queue} AND id = ?1 AND sent_us > ?2)
    OR EXISTS (SELECT 1 FROM waiting WHERE id = ?1 AND queue = {queue} AND given = 1)
    OR EXISTS (SELECT 1 FROM held WHERE id = ?1 AND queue = {queue} AND given = 1)

-- name: remember_id
INSERT INTO known VALUES ({queue}, ?1, ?2) ON CONFLICT DO UPDATE SET sent_us = excluded.sent_us

-- name: count
SELECT
    ifnull((SELECT max(seq) FROM waiting WHERE seq > {base} AND seq < {mid})
        - (SELECT min(seq) FROM waiting WHERE seq > {base} AND seq < {mid}) + 1, 0)
    - (SELECT count(*) FROM hole
        WHERE seq > (SELECT min(seq) FROM waiting WHERE seq > {base} AND seq < {mid})
        AND seq < (SELECT max(seq) FROM waiting WHERE seq > {base} AND seq < {mid}))

-- name: count_held
SELECT (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 0)
    + (SELECT count(*) FROM held WHERE seq > {base} AND seq < {mid} AND leased = 1)

-- name: held_due
SELECT * FROM (
    SELECT seq, leased, visible_us FROM held
    WHERE queue = {queue} AND leased = 0 AND visible_us <= ?1 ORDER BY visible_us, seq LIMIT 1000)
UNION ALL
SELECT seq, leased, visible_us FROM held WHERE seq > {base} AND seq < {mid} AND leased = 1 AND visible_us <= ?1

-- name: stats
SELECT
    ({count}),
    (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 0 AND visible_us <= ?1)
    + (SELECT count(*) FROM held
        WHERE seq > {base} AND seq < {mid} AND leased = 1 AND visible_us <= ?1),
    (SELECT count(*) FROM held
        WHERE seq > {base} AND seq < {mid} AND leased = 1 AND visible_us > ?1),
    (SELECT count(*) FROM held WHERE queue = {queue} AND leased = 0 AND visible_us > ?1),
    (SELECT min(sent_us) FROM (
        SELECT sent_us FROM (
            SELECT sent_us FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT 1)
        UNION ALL SELECT min(sent_us) FROM waiting WHERE queue = {queue} AND again = 1
        UNION ALL SELECT min(sent_us) FROM held
            WHERE queue = {queue} AND leased = 0 AND visible_us <= ?1
        UNION ALL SELECT min(sent_us) FROM held
            WHERE seq > {base} AND seq < {mid} AND leased = 1 AND visible_us <= ?1))

-- name: peek
SELECT id, payload, deliveries, nacks, enqueued_at
FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT ? OFFSET ?

-- name: peek_due
SELECT id, payload, deliveries, nacks, enqueued_at
FROM (SELECT * FROM ({held_due}) ORDER BY visible_us, leased, seq LIMIT ?2 OFFSET ?3) AS due
    JOIN held USING (seq)
ORDER BY due.visible_us, due.leased, seq

-- name: due
SELECT seq, leased FROM ({held_due}) ORDER BY visible_us, leased, seq LIMIT 1000

-- name: promote
INSERT INTO waiting
SELECT ?1, queue, 1, given, sent_us, enqueued_at, deliveries, nacks, first_received_at, id, payload
FROM held WHERE seq = ?2

-- name: unhold
DELETE FROM held WHERE seq = ?

-- name: take
INSERT INTO held
SELECT seq, queue, ?1, 1, random(), given, sent_us, enqueued_at, deliveries + 1, nacks,
    iif(deliveries, first_received_at, ?2), id, payload
FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT ?3
RETURNING seq, token, id, payload, deliveries, nacks, enqueued_at, first_received_at

-- name: take_one
INSERT INTO held
SELECT seq, queue, ?1, 1, random(), given, sent_us, enqueued_at, deliveries + 1, nacks,
    iif(deliveries, first_received_at, ?2), id, payload
FROM waiting WHERE seq = ?3
RETURNING seq, token, id, payload, deliveries, nacks, enqueued_at, first_received_at

-- name: leave_line
DELETE FROM waiting WHERE seq >= ?1 AND seq <= ?2

-- name: front
SELECT seq, sent_us FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq LIMIT ?

-- name: place_of_given
SELECT seq FROM waiting WHERE id = ? AND queue = {queue} AND given = 1

-- name: line
SELECT seq, id FROM waiting WHERE seq > {base} AND seq < {mid} ORDER BY seq

-- name: add_hole
INSERT INTO hole VALUES (?)

-- name: forget_holes
DELETE FROM hole WHERE seq > {base} AND seq < ifnull(
    (SELECT min(seq) FROM waiting WHERE seq > {base} AND seq < {mid}),
    (SELECT max(seq) FROM hole WHERE seq > {base} AND seq < {mid}))

-- name: next_due
SELECT min(due) FROM (
    SELECT min(visible_us) AS due FROM held
        WHERE queue = {queue} AND leased = 0 AND visible_us > ?1
    UNION ALL SELECT min(visible_us) FROM held
        WHERE seq > {base} AND seq < {mid} AND leased = 1 AND visible_us > ?1)

-- name: acknowledge
DELETE FROM held WHERE seq = ? AND token = ? AND visible_us > now_us()

-- name: acknowledge_at
DELETE FROM held WHERE seq = ?1 AND token = ?2 AND visible_us > ?3

-- name: give_back
INSERT INTO waiting
SELECT ({next_place}), queue, 1, given, sent_us, enqueued_at, deliveries, nacks + 1,
    first_received_at, id, payload
FROM held WHERE seq = ?1 AND token = ?2 AND queue = {queue} AND visible_us > now_us()

-- name: release
UPDATE held SET visible_us = now_us() + ?3, leased = 0, token = NULL, nacks = nacks + 1
WHERE seq = ?1 AND token = ?2 AND visible_us > now_us()

-- name: extend
UPDATE held SET visible_us = now_us() + ?3 WHERE seq = ?1 AND token = ?2 AND visible_us > now_us()

-- name: purge_waiting
DELETE FROM waiting WHERE seq > {base} AND seq < {mid}

-- name: purge_held
DELETE FROM held WHERE seq > {base} AND seq < {top}

-- name: ready
SELECT ifnull(
        (SELECT max(seq) FROM waiting WHERE seq > queue.id << 40 AND seq < (queue.id << 40) + (1 << 39))
        - (SELECT min(seq) FROM waiting WHERE seq > queue.id << 40 AND seq < (queue.id << 40) + (1 << 39))
        + 1, 0)
    + (SELECT count(*) FROM (
        SELECT 1 FROM held
        WHERE queue = queue.id AND leased = 0 AND visible_us <= now_us() LIMIT 1000))
FROM queue WHERE name = ?

-- name: reply_create
INSERT INTO reply (id, state, created_us, expires_us)
VALUES (?1, 'pending', now_us(), now_us() + ?2) ON CONFLICT DO NOTHING

-- name: reply_resolve
UPDATE reply SET state = 'resolved', payload = ?2, resolved_us = now_us(),
    expires_us = max(expires_us, now_us() + ?3)
WHERE id = ?1 AND state = 'pending' AND expires_us > now_us()

-- name: reply_cancel
UPDATE reply SET state = 'cancelled'
WHERE id = ? AND state = 'pending' AND expires_us > now_us()

-- name: reply_get
SELECT state, payload, created_us, expires_us, resolved_us FROM reply WHERE id = ?

-- name: reply_consume
DELETE FROM reply WHERE id = ? AND state = 'resolved' AND expires_us > now_us()
RETURNING state, payload, created_us, expires_us, resolved_us

-- name: reply_delete
DELETE FROM reply WHERE id = ?

-- name: reply_expired
SELECT id FROM reply WHERE expires_us <= now_us() LIMIT ?

-- name: reply_cleanup
DELETE FROM reply WHERE id IN (
    SELECT id FROM reply WHERE expires_us <= now_us() - ?1 LIMIT ?2)

-- name: reply_settled
SELECT NOT EXISTS (SELECT 1 FROM reply WHERE id = ? AND state = 'pending')
