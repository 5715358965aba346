-- A file as version 1 left it: what its tables were, and messages in every state they can be in.
PRAGMA page_size = 2048;
BEGIN;
CREATE TABLE era (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    boot TEXT NOT NULL,
    shift_us INTEGER NOT NULL,
    wall_offset_us INTEGER NOT NULL
);
CREATE TABLE queue (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE waiting (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    again INTEGER NOT NULL,
    given INTEGER NOT NULL,
    sent_us INTEGER NOT NULL,
    enqueued_at REAL NOT NULL,
    deliveries INTEGER NOT NULL,
    nacks INTEGER NOT NULL,
    first_received_at REAL NOT NULL,
    id TEXT NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX waiting_again ON waiting (queue, sent_us) WHERE again = 1;
CREATE INDEX waiting_given ON waiting (id, queue) WHERE given = 1;
CREATE TABLE held (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    visible_us INTEGER NOT NULL,
    leased INTEGER NOT NULL,
    token INTEGER,
    given INTEGER NOT NULL,
    sent_us INTEGER NOT NULL,
    enqueued_at REAL NOT NULL,
    deliveries INTEGER NOT NULL,
    nacks INTEGER NOT NULL,
    first_received_at REAL NOT NULL,
    id TEXT NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX held_delayed ON held (queue, visible_us) WHERE leased = 0;
CREATE INDEX held_given ON held (id, queue) WHERE given = 1;
CREATE TABLE hole (seq INTEGER PRIMARY KEY);
CREATE TABLE known (
    queue INTEGER NOT NULL,
    id TEXT NOT NULL,
    sent_us INTEGER NOT NULL,
    PRIMARY KEY (queue, id)
) WITHOUT ROWID;
CREATE INDEX known_sent ON known (sent_us);
CREATE TABLE reply (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    resolved_us INTEGER,
    payload BLOB
) WITHOUT ROWID;

-- The clock of the tests: booted 1,000 s ago, at 1,700,000,000 by the wall clock.
INSERT INTO era VALUES (1, 'first boot', 1699999000000000, 1699999000000000);
INSERT INTO queue VALUES (1, 'jobs'), (2, 'others');

-- In line: one never leased, one whose sender chose the id, one given back before.
INSERT INTO waiting VALUES
    ((1 << 40) + 4, 1, 0, 0, 1699999990000000, 1699999990.0, 0, 0, 1699999990.0, 'new', X'31'),
    ((1 << 40) + 5, 1, 0, 1, 1699999991000000, 1699999991.0, 0, 0, 1699999991.0, 'named', X'32'),
    ((1 << 40) + 6, 1, 1, 0, 1699999980000000, 1699999980.0, 2, 1, 1699999985.0, 'again', X'33');

-- Leased; given back with a delay, which left it where its lease had been; sent with a delay.
INSERT INTO held VALUES
    ((1 << 40) + 1, 1, 1700000060000000, 0, NULL, 0, 1699999970000000, 1699999970.0, 1, 1,
        1699999975.0, 'nacked', X'34'),
    ((1 << 40) + 2, 1, 1700000050000000, 0, NULL, 1, 1699999970000000, 1699999970.0, 3, 3,
        1699999975.0, 'nacked too', X'35'),
    ((1 << 40) + 3, 1, 1700000030000000, 1, 77, 0, 1699999970000000, 1699999970.0, 1, 0,
        1699999999.0, 'leased', X'36'),
    ((1 << 40) + (1 << 39) + 1, 1, 1700000070000000, 0, NULL, 0, 1699999995000000, 1699999995.0, 0,
        0, 1699999995.0, 'later', X'37'),
    ((2 << 40) + 9, 2, 1700000040000000, 0, NULL, 0, 1699999970000000, 1699999970.0, 1, 1,
        1699999975.0, 'elsewhere', X'38');

INSERT INTO known VALUES (1, 'named', 1699999991000000), (1, 'done', 1699999992000000);
INSERT INTO reply VALUES ('asked', 'pending', 1699999991000000, 1700000100000000, NULL, NULL);
PRAGMA user_version = 1;
PRAGMA application_id = 2003398251; -- 'wink'
COMMIT;
