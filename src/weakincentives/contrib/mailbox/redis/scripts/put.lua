#!lua
-- Add messages, all or none; an id that is queued, or was sent under five minutes ago, is left.
--
-- KEYS  1 pending    LIST  records that wait, next one at the tail: ID|ENQUEUED for a message that
--                          was never leased, ID|ENQUEUED|DELIVERIES|NACKS|FIRST otherwise
--                          (times in milliseconds by the server's clock)
--       2 data       HASH  id -> payload; every message has its one entry here until it is gone
--       3 delayed    ZSET  record -> when it becomes visible
--       4 wake       ZSET  one token, there while somebody should look into pending
--       5 sent       ZSET  id chosen by the sender -> when first sent; expires after five minutes
--       and only if the sender of the one message waits for a reply, made in the same step:
--       6 entry      HASH  the pending reply (see reply.lua)
--       7 expiry     ZSET  its id -> when it expires
-- ARGV  1 most messages the queue may hold, 0 for any number
--       2 "1" if WAIT follows, so that a send that changes nothing must still write
--       3 empty, or for each message its delay in milliseconds and "1" if the sender chose its id
--       then two for each message: id, payload
--       then, if a reply is waited for: its id, milliseconds to live
--
-- Returns how many were added, or, if there is no room, minus one minus the number held.
-- Declares no flags, so that at maxmemory the server refuses it before it begins.

local pending, data, delayed, wake, sent = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local REMEMBER, LINGER = 300000, 60000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = '|' .. now

local last = KEYS[6] and #ARGV - 2 or #ARGV

-- Make the pending reply; in the repeat of a call whose answer was lost it is there already.
local function expect()
  if not KEYS[6] or redis.call('HSETNX', KEYS[6], 'state', 'pending') == 0 then return end
  local expires = now + ARGV[last + 2]
  redis.call('HSET', KEYS[6], 'created', now, 'expires', expires)
  redis.call('PEXPIREAT', KEYS[6], expires + LINGER)
  redis.call('ZADD', KEYS[7], expires, ARGV[last + 1])
  redis.call('ZREMRANGEBYSCORE', KEYS[7], '-inf', now - LINGER)
end

local room = tonumber(ARGV[1])

-- The number of messages held, if so many more do not fit.
local function too_many(more)
  if room == 0 then return end
  local held = redis.call('HLEN', data)
  return held + more > room and held
end

local function join_line(records)
  if redis.call('LPUSH', pending, unpack(records)) == #records then
    -- It was empty, so nobody else has rung: others pass the token on while something is left.
    redis.call('ZADD', wake, 0, '1')
  end
end

local plain, ids, records = ARGV[3] == '', {}, {}

-- Most sends are one message and nothing special. It may be known all the same: the first attempt
-- of a call that was repeated can arrive after the repeat.
if plain and last == 5 and room == 0 and ARGV[2] == '0' then
  expect()
  if redis.call('HSETNX', data, ARGV[4], ARGV[5]) == 0 then return 0 end
  join_line({ ARGV[4] .. stamp })
  return 1
end

for i = 4, last, 2 do
  ids[#ids + 1] = ARGV[i]
  records[#records + 1] = ARGV[i] .. stamp
end
local queued, any_queued = redis.call('HMGET', data, unpack(ids)), false
for n = 1, #ids do any_queued = any_queued or queued[n] end

if plain and not any_queued then
  local held = too_many(#ids)
  if held then return -1 - held end
  expect()
  redis.call('HSET', data, unpack(ARGV, 4, last))
  join_line(records)
  return #ids
end

local delays, named, any_named = {}, {}, false
for delay, given in string.gmatch(ARGV[3], '(%d+) (%d)') do
  delays[#delays + 1] = tonumber(delay)
  named[#delays] = given == '1'
  any_named = any_named or named[#delays]
end

-- What is to be added: neither queued, nor sent lately, nor twice in this batch.
local seen, fields, added = {}, {}, {}
records = {}
for n, id in ipairs(ids) do
  local known = queued[n] or seen[id]
  if not known and named[n] then
    local first = redis.call('ZSCORE', sent, id)
    known = first and now - tonumber(first) < REMEMBER
  end
  if not known then
    seen[id] = true
    added[#added + 1] = n
    fields[#fields + 1] = id
    fields[#fields + 1] = ARGV[2 * n + 3]
  end
end

local held = too_many(#added)
if held then return -1 - held end

if #added == 0 then
  if ARGV[2] == '1' and queued[1] then
    -- WAIT counts what this connection wrote: write the entry over itself.
    redis.call('HSET', data, ids[1], queued[1])
  end
  return 0
end

expect()
redis.call('HSET', data, unpack(fields))
for _, n in ipairs(added) do
  if (delays[n] or 0) > 0 then
    redis.call('ZADD', delayed, now + delays[n], ids[n] .. stamp)
  else
    records[#records + 1] = ids[n] .. stamp
  end
  if named[n] then redis.call('ZADD', sent, now, ids[n]) end
end
if any_named then
  redis.call('ZREMRANGEBYSCORE', sent, '-inf', now - REMEMBER)
  redis.call('PEXPIRE', sent, REMEMBER)
end
if #records > 0 then join_line(records) end
return #added
