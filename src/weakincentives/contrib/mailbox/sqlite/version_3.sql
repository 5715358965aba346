-- Version 3 of a weakincentives file. New files are made by schema.sql, version_2.sql, then this.

-- The reply that a caller waits for, reply.id; NULL for most messages, which takes no room. The
-- lease of a message that has one records the start there.
ALTER TABLE waiting ADD COLUMN reply TEXT;
ALTER TABLE held ADD COLUMN reply TEXT;

-- 1: cancelled while it was leased. It is removed when it is given back or its lease ends; what is
-- not leased is removed at once.
ALTER TABLE held ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0;

-- With `cancelled`, so that what is due is counted without looking at each message.
DROP INDEX held_leased;
CREATE INDEX held_leased ON held (queue, visible_us, sent_us, cancelled) WHERE leased = 2;

-- A reply's state may now also be 'failed'. `handle` and the two columns after it tell of the last
-- start of its job; they are NULL or 0 before the first one, and again after a replay.
ALTER TABLE reply ADD COLUMN ttl_us INTEGER NOT NULL DEFAULT 0;     -- how long its caller waits
ALTER TABLE reply ADD COLUMN keep_us INTEGER NOT NULL DEFAULT 0;    -- how long it is kept when settled
ALTER TABLE reply ADD COLUMN handle TEXT;                           -- the receipt handle
ALTER TABLE reply ADD COLUMN worker TEXT;                           -- host and process id
ALTER TABLE reply ADD COLUMN deliveries INTEGER NOT NULL DEFAULT 0; -- how often it had been leased
ALTER TABLE reply ADD COLUMN started_at REAL NOT NULL DEFAULT 0;
ALTER TABLE reply ADD COLUMN series INTEGER NOT NULL DEFAULT 0;     -- counts all starts
ALTER TABLE reply ADD COLUMN parts INTEGER NOT NULL DEFAULT 0;      -- counts all parts
ALTER TABLE reply ADD COLUMN part_bytes INTEGER NOT NULL DEFAULT 0; -- counts their bytes
UPDATE reply SET ttl_us = max(expires_us - created_us, 0) WHERE state = 'pending';

-- Parts of replies; of each reply only the latest ones are kept.
CREATE TABLE reply_part (
    reply TEXT NOT NULL,             -- reply.id
    number INTEGER NOT NULL,         -- counts the parts of the reply from 0
    series INTEGER NOT NULL,         -- the start that emitted it
    bytes_before INTEGER NOT NULL,   -- the size of all parts before it
    payload BLOB NOT NULL,
    PRIMARY KEY (reply, number)
) WITHOUT ROWID;

-- However a reply goes, its parts go with it; one that has none is not looked up.
CREATE TRIGGER reply_gone AFTER DELETE ON reply WHEN old.parts IS NOT 0 BEGIN
    DELETE FROM reply_part WHERE reply = old.id;
END;
