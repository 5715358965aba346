#!lua flags=no-writes
-- Count the messages by state. What is due but was not brought back yet counts as pending.
--
-- KEYS  1 pending    LIST  records that wait (see put.lua)
--       2 invisible  ZSET  leases (see lease.lua)
--       3 delayed    ZSET  record -> when it becomes visible
--       4 unreadable LIST  what was set aside (see lease.lua)
--
-- Returns { pending, leased, delayed, age in milliseconds of the oldest pending or -1, set aside }.
-- The age is exact while at most two thousand are pending: beyond, redelivered ones in the middle
-- are not looked at.

local LOOK, LONGEST_NUMBER = 1000, 14

local pending, invisible, delayed, unreadable = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
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
look(redis.call('ZRANGE', invisible, '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK))
look(redis.call('ZRANGE', delayed, '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK))

return {
  waiting + expired + visible,
  redis.call('ZCARD', invisible) - expired,
  redis.call('ZCARD', delayed) - visible,
  oldest == math.huge and -1 or math.max(now - oldest, 0),
  redis.call('LLEN', unreadable),
}
