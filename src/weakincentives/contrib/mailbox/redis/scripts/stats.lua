#!lua flags=no-writes
-- Count the messages by state. What is due but was not brought back yet counts as pending.
--
-- KEYS  1 pending    LIST  records that wait (see put.lua)
--       2 invisible  ZSET  leases (see lease.lua)
--       3 delayed    ZSET  record -> when it becomes visible
--
-- Returns { pending, leased, delayed, age in milliseconds of the oldest pending or -1 }. The age
-- is exact while at most two thousand are pending: beyond, redelivered ones in the middle are
-- not looked at.

local LOOK = 1000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local pending = redis.call('LLEN', KEYS[1])
local expired = redis.call('ZCOUNT', KEYS[2], '-inf', now)
local visible = redis.call('ZCOUNT', KEYS[3], '-inf', now)
local oldest = math.huge

local function look(records)
  for _, record in ipairs(records) do
    oldest = math.min(oldest, tonumber(string.match(record, '^[^|]*|(%d+)')))
  end
end

look(redis.call('LRANGE', KEYS[1], -LOOK, -1))
if pending > LOOK then look(redis.call('LRANGE', KEYS[1], 0, LOOK - 1)) end
look(redis.call('ZRANGE', KEYS[2], '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK))
look(redis.call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, LOOK))

return {
  pending + expired + visible,
  redis.call('ZCARD', KEYS[2]) - expired,
  redis.call('ZCARD', KEYS[3]) - visible,
  oldest == math.huge and -1 or now - oldest,
}
