-- Version 4 of a weakincentives file. New files are made by schema.sql and the scripts of the
-- versions after it, in order.

-- The processes that serve queues of the file. Each writes its row every few seconds; one that was
-- killed is listed until `expires_us`.
CREATE TABLE worker (
    id TEXT PRIMARY KEY,
    written_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    entry BLOB NOT NULL              -- how it describes itself, as JSON
) WITHOUT ROWID;

-- Queues from which nothing is received until they are resumed; they need not exist yet.
CREATE TABLE paused_queue (
    name TEXT PRIMARY KEY,           -- queue.name
    note BLOB NOT NULL               -- who has paused it, when and why, as JSON
) WITHOUT ROWID;
