#!lua flags=allow-oom
-- Remove everything that there is of a queue, unless it has messages.
--
-- KEYS  1 pending    LIST  records that wait (see put.lua)
--       2 invisible  ZSET  leases (see lease.lua)
--       3 data       HASH  id -> payload, "-" if the message was cancelled (see cancel.lua): it is
--                          none once its lease is over
--       4 delayed    ZSET  record -> when it becomes visible
--       5 wake       ZSET  one token, present while a consumer should look into pending
--       6 sent       ZSET  ids chosen by senders (see put.lua)
--       7 unreadable LIST  what was set aside (see lease.lua)
-- ARGV  1 force     "1" to remove the messages too, leased and delayed ones among them
--       2 repeated  "1" if this may be the repeat of a call whose answer was lost
--
-- Returns { 1 if there was something, else 0 } or, if it has messages, { -1, pending, leased,
-- delayed }. What is due counts as pending. A repeat that finds nothing returns 1.

local pending, invisible, data, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local force, repeated = ARGV[1] == '1', ARGV[2] == '1'
local LOOK, GONE = 1000, '-'

if not force then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local expired = redis.call('ZCOUNT', invisible, '-inf', now)
  local visible = redis.call('ZCOUNT', delayed, '-inf', now)
  local waiting = redis.call('LLEN', pending) + expired + visible
  local leased = redis.call('ZCARD', invisible) - expired
  local later = redis.call('ZCARD', delayed) - visible
  local due = redis.call('ZRANGE', invisible, '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK)
  for _, handle in ipairs(due) do
    local id = string.match(handle, '^[^|]*')
    -- Its length first: payloads are large, and nearly none is cancelled.
    if redis.call('HSTRLEN', data, id) == #GONE and redis.call('HGET', data, id) == GONE then
      waiting = waiting - 1
    end
  end
  if waiting + leased + later > 0 then return { -1, waiting, leased, later } end
end

local found = 0
-- One at a time: while a slot moves, a server runs no command with several keys (see resp.py).
for _, key in ipairs(KEYS) do found = found + redis.call('UNLINK', key) end
return { (found > 0 or repeated) and 1 or 0 }
