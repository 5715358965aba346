#!lua flags=allow-oom
-- Acknowledge, give back or extend what a consumer holds.
--
-- KEYS  1 pending    LIST  records that wait, next one at the tail (see put.lua)
--       2 invisible  ZSET  leases: handle -> when it runs out (see lease.lua)
--       3 data       HASH  id -> payload, "-" if the message was cancelled: then it is removed
--                          instead of being given back (see cancel.lua)
--       4 delayed    ZSET  record -> when it becomes visible
--       5 wake       ZSET  one token, present while a consumer should look into pending
-- ARGV  1 step      "ack", "extend", or how to give back: "failed" (one nack more), "put_off" (one
--                   nack and one put-off more) or "undone" (as if it had not been leased)
--       2 after     milliseconds until what is given back is visible, or an extended lease ends
--       3 repeated  "1" if this may be the repeat of a call whose answer was lost
--       then the handles
--
-- Returns a character for each handle: 1 done, 0 refused, 2 (only when a repeated "ack" is
-- refused) the message is gone.

local pending, invisible, data, delayed, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local step, after, repeated = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local steps, CHUNK, GONE, TOKEN_LASTS = {}, 1000, '-', 3600000

local function id_of(handle)
  return string.match(handle, '^[^|]*')
end

function steps.ack(handles)
  local ids = {}
  for i, handle in ipairs(handles) do ids[i] = id_of(handle) end
  redis.call('HDEL', data, unpack(ids))
  redis.call('ZREM', invisible, unpack(handles))
end

-- The record of a message that is given back.
local function record_of(handle)
  local base, deliveries, nacks, first, put_offs =
    string.match(handle, '^([^|]*|[^|]*)|(%d+)|(%d+)|(%d+)|?(%d*)|[^|]*$')
  if step == 'undone' then
    deliveries = deliveries - 1
    if deliveries == 0 then return base end
  else
    nacks = nacks + 1
  end
  if step == 'put_off' then put_offs = (tonumber(put_offs) or 0) + 1 end
  local record = base .. '|' .. deliveries .. '|' .. nacks .. '|' .. first
  return put_offs == '' and record or record .. '|' .. put_offs
end

local function is_cancelled(id)
  -- Its length first: payloads are large, and nearly none is cancelled.
  return redis.call('HSTRLEN', data, id) == #GONE and redis.call('HGET', data, id) == GONE
end

local function give_back(handles)
  local undone, back = step == 'undone', {}
  for i = 1, #handles do
    -- What is undone goes to the front: the first of them is pushed last.
    local handle = handles[undone and #handles + 1 - i or i]
    if is_cancelled(id_of(handle)) then
      redis.call('HDEL', data, id_of(handle))
    else
      if after > 0 then back[#back + 1] = now + after end
      back[#back + 1] = record_of(handle)
    end
  end
  if #back == 0 then
    redis.call('ZREM', invisible, unpack(handles))
    return
  end
  if after > 0 then
    redis.call('ZADD', delayed, unpack(back))
  else
    redis.call(undone and 'RPUSH' or 'LPUSH', pending, unpack(back))
  end
  redis.call('ZREM', invisible, unpack(handles))
  if after == 0 then
    redis.call('ZADD', wake, 0, '1')
    redis.call('PEXPIRE', wake, TOKEN_LASTS)
  end
end

steps.failed, steps.put_off, steps.undone = give_back, give_back, give_back

function steps.extend(handles)
  local ends = {}
  for _, handle in ipairs(handles) do
    ends[#ends + 1] = now + after
    ends[#ends + 1] = handle
  end
  redis.call('ZADD', invisible, 'XX', unpack(ends))
end

local answers = {}

local function settle(first, last)
  local ends, held = redis.call('ZMSCORE', invisible, unpack(ARGV, first, last)), {}
  for i = first, last do
    local answer, at = '0', ends[i - first + 1]
    if at and tonumber(at) > now then
      held[#held + 1] = ARGV[i]
      answer = '1'
    elseif repeated and redis.call('HEXISTS', data, id_of(ARGV[i])) == 0 then
      answer = '2'
    end
    answers[i - 3] = answer
  end
  if #held > 0 then steps[step](held) end
end

-- Some at a time, for Lua cannot pass any number to one command; the last ones first if they go to
-- the front.
if step == 'undone' then
  for last = #ARGV, 4, -CHUNK do settle(math.max(last - CHUNK + 1, 4), last) end
else
  for first = 4, #ARGV, CHUNK do settle(first, math.min(first + CHUNK - 1, #ARGV)) end
end
return table.concat(answers)
