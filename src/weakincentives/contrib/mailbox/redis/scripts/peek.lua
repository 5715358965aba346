#!lua flags=no-writes
-- Look at messages that wait, in the order in which they would be received.
--
-- KEYS  1 pending    LIST  records that wait, next one at the tail (see put.lua)
--       2 invisible  ZSET  leases (see lease.lua)
--       3 delayed    ZSET  record -> when it becomes visible
--       4 data       HASH  id -> payload, "-" if the message was cancelled (see cancel.lua)
-- ARGV  1 limit   how many to return
--       2 offset  how many to pass over before them
--
-- Returns { record, payload, record, payload, ... }, eight mebibytes of payloads or one message.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local pending, invisible, delayed, data = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit, offset = tonumber(ARGV[1]), tonumber(ARGV[2])
local records, MOST_BYTES, GONE = {}, 8388608, '-'

local waiting = redis.call('LRANGE', pending, -offset - limit, -offset - 1)
for i = #waiting, 1, -1 do records[#records + 1] = waiting[i] end

-- What is due comes after what is pending.
local function due(key, pattern)
  if #records >= limit then return end
  local found = redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', offset, limit - #records)
  for _, member in ipairs(found) do
    records[#records + 1] = string.match(member, pattern) or member
  end
  offset = math.max(offset - redis.call('ZCOUNT', key, '-inf', now), 0)
end

offset = math.max(offset - redis.call('LLEN', pending), 0)
due(invisible, '^(.*)|[^|]*$')
due(delayed, '^.*$')

local answer, bytes = {}, 0
for _, record in ipairs(records) do
  local payload = redis.call('HGET', data, string.match(record, '^[^|]*'))
  if payload and payload ~= GONE then
    bytes = bytes + #payload
    if bytes > MOST_BYTES and #answer > 0 then break end
    answer[#answer + 1] = record
    answer[#answer + 1] = payload
  end
end
return answer
