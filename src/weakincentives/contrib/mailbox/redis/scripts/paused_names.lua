#!lua flags=allow-oom
-- Keep the names of the queues that may be paused: they may be anywhere in a cluster.
--
-- KEYS  1 paused_names  HASH  name -> the note with which it was last paused. A name is added before
--                             the queue is paused, so that every paused queue is here; the key of
--                             the queue itself says whether it is (see pause.lua)
-- ARGV  1 step  "add", "remove" (unless it was paused anew, with another note) or "list"
--       2 name  the queue
--       3 note  the note
--
-- Returns the names for "list", else 1.

local paused_names = KEYS[1]
local step, name, note = ARGV[1], ARGV[2], ARGV[3]

if step == 'list' then return redis.call('HKEYS', paused_names) end
if step == 'add' then
  redis.call('HSET', paused_names, name, note)
elseif redis.call('HGET', paused_names, name) == note then
  redis.call('HDEL', paused_names, name)
end
return 1
