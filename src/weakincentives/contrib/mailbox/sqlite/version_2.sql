-- Version 2 of a weakincentives file. New files are made by schema.sql, then this.

-- How many of a message's nacks only put it off. After the payload, where a column can be added;
-- 0 and 1 take no room there, so that reading them reads nothing beyond the row's header.
ALTER TABLE waiting ADD COLUMN put_offs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE held ADD COLUMN put_offs INTEGER NOT NULL DEFAULT 0;

-- The queue and the message that a reply belongs to.
ALTER TABLE reply ADD COLUMN owner TEXT;

-- The latest time that was noted on the file's clock. After a reboot with a wall clock that is
-- behind, the file's clock continues from there.
ALTER TABLE era ADD COLUMN seen_us INTEGER NOT NULL DEFAULT 0;

-- A lease is put into the index once it has lasted a while: most are over before, and each would
-- cost a page at both its ends. `leased` is then 2. Every lease up to `indexed_to` is in the index;
-- what is leased after that is found by walking along the numbers above it.
ALTER TABLE queue ADD COLUMN indexed_to INTEGER NOT NULL DEFAULT 0;
CREATE INDEX held_leased ON held (queue, visible_us, sent_us) WHERE leased = 2;

-- With sent_us, so that the age of what is due is counted without looking at each message.
DROP INDEX held_delayed;
CREATE INDEX held_delayed ON held (queue, visible_us, sent_us) WHERE leased = 0;

-- Whatever was given back with a delay joins the upper half of its queue's numbers, where it is
-- found by the index alone: the lower half is for leases.
INSERT INTO held (
    seq, queue, visible_us, leased, token, given, sent_us, enqueued_at, deliveries, nacks,
    first_received_at, id, payload, put_offs
)
SELECT (queue << 40) + (1 << 39) + row_number() OVER (PARTITION BY queue ORDER BY visible_us, seq)
        + ifnull((SELECT max(seq) & ((1 << 39) - 1) FROM held AS delayed
            WHERE seq > (held.queue << 40) + (1 << 39) AND seq < (held.queue + 1) << 40), 0),
    queue, visible_us, leased, token, given, sent_us, enqueued_at, deliveries, nacks,
    first_received_at, id, payload, put_offs
FROM held WHERE leased = 0 AND seq & (1 << 39) = 0;
DELETE FROM held WHERE leased = 0 AND seq & (1 << 39) = 0;
