#!lua flags=no-writes
-- List the workers.
--
-- KEYS  1 workers        HASH  id -> WRITTEN|ENTRY (see write_worker.lua)
--       2 worker_expiry  ZSET  id -> until when it is listed
--
-- Returns { age in milliseconds, entry, age, entry, ... }.

local workers, worker_expiry = KEYS[1], KEYS[2]
local CHUNK, LONGEST_NUMBER = 1000, 14

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ids = redis.call('ZRANGE', worker_expiry, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, 10000)
local rows = {}
for first = 1, #ids, CHUNK do
  local last = math.min(first + CHUNK - 1, #ids)
  for _, row in ipairs(redis.call('HMGET', workers, unpack(ids, first, last))) do
    local written, entry = string.match(row or '', '^(%d+)|(.*)$')
    if written and #written <= LONGEST_NUMBER then
      rows[#rows + 1] = math.max(now - tonumber(written), 0)
      rows[#rows + 1] = entry
    end
  end
end
return rows
