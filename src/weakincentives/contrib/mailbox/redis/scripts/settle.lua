#!lua flags=allow-oom
-- Acknowledge, give back or extend what a consumer holds.
--
-- KEYS  1 pending    LIST  records that wait, next one at the tail (see put.lua)
--       2 invisible  ZSET  leases: handle -> when it runs out (see lease.lua)
--       3 data       HASH  id -> payload
--       4 delayed    ZSET  record -> when it becomes visible
--       5 wake       ZSET  one token, there while somebody should look into pending
-- ARGV  1 "ack", "release" or "extend"
--       2 milliseconds: until a released message is visible, or an extended lease runs out
--       3 "1" if this may be the repeat of a call whose answer was lost
--       then the handles
--
-- Returns a character for each handle: 1 done, 0 refused, 2 (only when a repeated "ack" is
-- refused) the message is gone.

local pending, invisible, data, delayed, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local after = tonumber(ARGV[2])
local step, rung = {}, false

local function id_of(handle)
  return string.match(handle, '^[^|]*')
end

function step.ack(handle)
  redis.call('HDEL', data, id_of(handle))
  redis.call('ZREM', invisible, handle)
end

function step.release(handle)
  local base, deliveries, nacks, first = string.match(handle, '^(.*)|(%d+)|(%d+)|(%d+)|[^|]*$')
  local record = base .. '|' .. deliveries .. '|' .. (nacks + 1) .. '|' .. first
  if after > 0 then
    redis.call('ZADD', delayed, now + after, record)
  else
    redis.call('LPUSH', pending, record)
    rung = true
  end
  redis.call('ZREM', invisible, handle)
end

function step.extend(handle)
  redis.call('ZADD', invisible, 'XX', now + after, handle)
end

local take, answers = step[ARGV[1]], {}
for i = 4, #ARGV do
  local ends = redis.call('ZSCORE', invisible, ARGV[i])
  local answer = '0'
  if ends and tonumber(ends) > now then
    take(ARGV[i])
    answer = '1'
  elseif ARGV[3] == '1' and redis.call('HEXISTS', data, id_of(ARGV[i])) == 0 then
    answer = '2'
  end
  answers[i - 3] = answer
end
if rung then redis.call('ZADD', wake, 0, '1') end
return table.concat(answers)
