#!lua flags=allow-oom
-- Write the row of a worker, or remove it.
--
-- KEYS  1 workers        HASH  id -> WRITTEN|ENTRY: when it was written, and how the worker describes
--                              itself; ten thousand of them at most
--       2 worker_expiry  ZSET  id -> until when it is listed
-- ARGV  1 id     the worker's id
--       2 lasts  for how many milliseconds it is listed
--       3 entry  how it describes itself; empty to remove the row
--
-- Returns 1.

local workers, worker_expiry = KEYS[1], KEYS[2]
local id, lasts, entry = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local MOST, CHUNK = 10000, 1000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function remove(ids)
  if #ids == 0 then return end
  redis.call('HDEL', workers, unpack(ids))
  redis.call('ZREM', worker_expiry, unpack(ids))
end

if entry == '' then
  remove({ id })
else
  redis.call('HSET', workers, id, now .. '|' .. entry)
  redis.call('ZADD', worker_expiry, now + lasts, id)
end
remove(redis.call('ZRANGE', worker_expiry, '-inf', now, 'BYSCORE', 'LIMIT', 0, CHUNK))
local more = redis.call('ZCARD', worker_expiry) - MOST
if more > 0 then
  remove(redis.call('ZRANGE', worker_expiry, 0, math.min(more, CHUNK) - 1))
end
return 1
