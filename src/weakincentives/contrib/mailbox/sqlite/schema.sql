-- Version 1 of a weakincentives file: application_id 'wink', user_version 1. The scripts for
-- later versions, in order, describe what those added.
--
-- A message is in one of two places. `waiting` is a line: new messages join its end, leases are
-- taken from its front. `held` is everything that becomes visible at some later time: leased and
-- delayed messages. What has come due goes from `held` to the end of `waiting` in the next lease.
-- Sending thus touches one page, and a line that only loses its front needs no counter: its length
-- is last - first + 1, less the numbers in `hole`.
--
-- Times named *_us are microseconds on the file's own clock (see `era`); those named *_at are
-- seconds since the epoch by the wall clock of the process that wrote them, for people to read.
--
-- A number (`seq`) belongs to a queue: queue << 40 is its first, so that a table is sorted by queue
-- and then by place. The lower half of a queue's numbers is for the line, the upper half for
-- messages that were sent with a delay and have not been in the line yet.

-- The file's clock. It shows the boot clock of this machine plus `shift_us`, so that a jump of the
-- wall clock moves nothing; at the first opening after a reboot the shift is set anew by the wall
-- clock. One row.
CREATE TABLE era (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    boot TEXT NOT NULL,              -- the kernel's boot id; '' where there is none
    shift_us INTEGER NOT NULL,       -- file clock minus boot clock
    wall_offset_us INTEGER NOT NULL  -- wall clock minus boot clock, when last seen
);

CREATE TABLE queue (
    id INTEGER PRIMARY KEY,          -- the upper bits of its messages' numbers; never reused
    name TEXT NOT NULL UNIQUE        -- '' if this was the newest one when it was deleted: the row
                                     -- stays until the next one is made, so that its id is not used
);

-- Messages that can be received now, in this order.
CREATE TABLE waiting (
    seq INTEGER PRIMARY KEY,         -- the place in line
    queue INTEGER NOT NULL,          -- queue.id
    again INTEGER NOT NULL,          -- 1: came here from `held`, so it may be older than its place
    given INTEGER NOT NULL,          -- 1: the sender chose the id
    sent_us INTEGER NOT NULL,        -- when it was sent; age and retention count from here
    enqueued_at REAL NOT NULL,       -- the same for people
    deliveries INTEGER NOT NULL,     -- how many times it was leased
    nacks INTEGER NOT NULL,          -- how many of them ended in a nack
    first_received_at REAL NOT NULL, -- when it was leased first; means nothing while deliveries = 0
    id TEXT NOT NULL,                -- the message's id
    payload BLOB NOT NULL
);
CREATE INDEX waiting_again ON waiting (queue, sent_us) WHERE again = 1;
CREATE INDEX waiting_given ON waiting (id, queue) WHERE given = 1;

-- Messages that become visible later; columns as above, and:
CREATE TABLE held (
    seq INTEGER PRIMARY KEY,         -- the place it had in line, or one of the upper half
    queue INTEGER NOT NULL,
    visible_us INTEGER NOT NULL,     -- when the lease or the delay ends
    leased INTEGER NOT NULL,         -- 1: leased, 0: delayed or given back
    token INTEGER,                   -- random for each delivery; with seq it is the receipt handle
    given INTEGER NOT NULL,
    sent_us INTEGER NOT NULL,
    enqueued_at REAL NOT NULL,
    deliveries INTEGER NOT NULL,
    nacks INTEGER NOT NULL,
    first_received_at REAL NOT NULL,
    id TEXT NOT NULL,
    payload BLOB NOT NULL
);
-- Leases are not in this index: there are few of them, and each would cost a page at both its ends.
-- Those that have run out are found by walking along the lower half of the queue's numbers.
-- (Version 2 has an index for those that last.)
CREATE INDEX held_delayed ON held (queue, visible_us) WHERE leased = 0;
CREATE INDEX held_given ON held (id, queue) WHERE given = 1;

-- Numbers inside the line that are free because a message was taken from its middle.
CREATE TABLE hole (
    seq INTEGER PRIMARY KEY
);

-- Ids that senders chose, remembered for five minutes from `sent_us`, which for the ids that loops
-- derive from messages is in the future until those are done.
CREATE TABLE known (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    sent_us INTEGER NOT NULL,
    PRIMARY KEY (queue, id)
) WITHOUT ROWID;
CREATE INDEX known_sent ON known (sent_us);

-- Replies that callers wait for.
CREATE TABLE reply (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL,             -- pending, resolved or cancelled
    created_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,     -- from here on it counts as expired, whatever its state
    resolved_us INTEGER,
    payload BLOB
) WITHOUT ROWID;
