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
local step = {}

local function id_of(handle)
  return string.match(handle, '^[^|]*')
end

function step.ack(handles)
  local ids = {}
  for i, handle in ipairs(handles) do ids[i] = id_of(handle) end
  redis.call('HDEL', data, unpack(ids))
  redis.call('ZREM', invisible, unpack(handles))
end

function step.release(handles)
  local back = {}
  for _, handle in ipairs(handles) do
    local base, deliveries, nacks, first = string.match(handle, '^(.*)|(%d+)|(%d+)|(%d+)|[^|]*$')
    if after > 0 then back[#back + 1] = now + after end
    back[#back + 1] = base .. '|' .. deliveries .. '|' .. (nacks + 1) .. '|' .. first
  end
  if after > 0 then
    redis.call('ZADD', delayed, unpack(back))
  else
    redis.call('LPUSH', pending, unpack(back))
  end
  redis.call('ZREM', invisible, unpack(handles))
  if after == 0 then redis.call('ZADD', wake, 0, '1') end
end

function step.extend(handles)
  local ends = {}
  for _, handle in ipairs(handles) do
    ends[#ends + 1] = now + after
    ends[#ends + 1] = handle
  end
  redis.call('ZADD', invisible, 'XX', unpack(ends))
end

if #ARGV < 4 then return '' end
local ends, held, answers = redis.call('ZMSCORE', invisible, unpack(ARGV, 4)), {}, {}
for i = 4, #ARGV do
  local answer, at = '0', ends[i - 3]
  if at and tonumber(at) > now then
    held[#held + 1] = ARGV[i]
    answer = '1'
  elseif ARGV[3] == '1' and redis.call('HEXISTS', data, id_of(ARGV[i])) == 0 then
    answer = '2'
  end
  answers[i - 3] = answer
end
if #held > 0 then step[ARGV[1]](held) end
return table.concat(answers)
