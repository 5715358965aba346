#!lua flags=no-writes
-- Return the notes of queues.
--
-- KEYS  1 paused  STRING  the note of a paused queue (see pause.lua); more of them may follow
--
-- Returns { note or nothing, ... }.

local notes = {}
for i, key in ipairs(KEYS) do notes[i] = redis.call('GET', key) end
return notes
