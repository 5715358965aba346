#!lua flags=allow-oom
-- Pause a queue, or resume it.
--
-- KEYS  1 paused  STRING  the note of a paused queue: who, when and why; none if it is not paused
--       2 wake    ZSET    one token, present while a consumer should look into pending
-- ARGV  1 note  the note; empty to resume
--
-- Returns the note that there was, or nothing.

local paused, wake = KEYS[1], KEYS[2]
local note, TOKEN_LASTS = ARGV[1], 3600000

local before = redis.call('GET', paused)
if note ~= '' then
  redis.call('SET', paused, note)
elseif before then
  redis.call('DEL', paused)
  redis.call('ZADD', wake, 0, '1')
  redis.call('PEXPIRE', wake, TOKEN_LASTS)  -- see put.lua
end
return before
