#!lua flags=no-writes
-- Count the messages by state. What is due but was not brought back yet counts as pending.
--
-- KEYS  1 pending    LIST  records that wait (see put.lua)
--       2 invisible  ZSET  leases (see lease.lua)
--       3 delayed    ZSET  record -> when it becomes visible
--       4 unreadable LIST  what was set aside (see lease.lua)
--       5 data       HASH  id -> payload, "-" if the message was cancelled (see cancel.lua): its
--                          lease counts until it is over, and not as pending then
--       6 paused     STRING  there while the queue is paused (see pause.lua)
--
-- Returns { pending, leased, delayed, age in milliseconds of the oldest pending or -1, set aside, 1
-- if the queue is paused }.
-- The age is exact while at most two thousand are pending: beyond, redelivered ones in the middle
-- are not looked at.

local LOOK, LONGEST_NUMBER, GONE = 1000, 14, '-'

local pending, invisible, delayed, unreadable, data = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local paused = KEYS[6]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local waiting = redis.call('LLEN', pending)
local expired = redis.call('ZCOUNT', invisible, '-inf', now)
local visible = redis.call('ZCOUNT', delayed, '-inf', now)
local oldest = math.huge

local function look(records)
  for _, record in ipairs(records) do
    local enqueued = string.match(record, '^[^|]*|(%d+)')
    if enqueued and #enqueued <= LONGEST_NUMBER then
      oldest = math.min(oldest, tonumber(enqueued))
    end
  end
end

look(redis.call('LRANGE', pending, -LOOK, -1))
if waiting > LOOK then look(redis.call('LRANGE', pending, 0, LOOK - 1)) end
local due, over = redis.call('ZRANGE', invisible, '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK), {}
local cancelled = 0
for _, handle in ipairs(due) do
  local id = string.match(handle, '^[^|]*')
  if redis.call('HSTRLEN', data, id) == #GONE and redis.call('HGET', data, id) == GONE then
    cancelled = cancelled + 1
  else
    over[#over + 1] = handle
  end
end
look(over)
look(redis.call('ZRANGE', delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK))

return {
  waiting + expired - cancelled + visible,
  redis.call('ZCARD', invisible) - expired,
  redis.call('ZCARD', delayed) - visible,
  oldest == math.huge and -1 or math.max(now - oldest, 0),
  redis.call('LLEN', unreadable),
  redis.call('EXISTS', paused),
}
