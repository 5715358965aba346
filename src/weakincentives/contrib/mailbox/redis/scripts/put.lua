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
-- ARGV  1 most messages the queue may hold, 0 for any number
--       2 "1" if WAIT follows, so that a send that changes nothing must still write
--       then four for each message: id, payload, delay in milliseconds, "1" if the sender chose
--       the id
--
-- Returns how many were added, or, if there is no room, minus one minus the number held.
-- Declares no flags, so that at maxmemory the server refuses it before it begins.

local pending, data, delayed, wake, sent = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local REMEMBER = 300000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local room = tonumber(ARGV[1])

local function known(i)
  if ARGV[i + 3] ~= '1' then return false end
  local first = redis.call('ZSCORE', sent, ARGV[i])
  return first and now - tonumber(first) < REMEMBER
end

if room > 0 then
  local held, fresh = redis.call('HLEN', data), 0
  for i = 3, #ARGV, 4 do
    if redis.call('HEXISTS', data, ARGV[i]) == 0 and not known(i) then fresh = fresh + 1 end
  end
  if held + fresh > room then return -1 - held end
end

local records, added, named = {}, 0, false
for i = 3, #ARGV, 4 do
  local id, delay = ARGV[i], tonumber(ARGV[i + 2])
  if known(i) then
    -- nothing to do: it is queued, or was and is done
  elseif redis.call('HSETNX', data, id, ARGV[i + 1]) == 1 then
    added = added + 1
    local record = id .. '|' .. now
    if delay > 0 then
      redis.call('ZADD', delayed, now + delay, record)
    else
      records[#records + 1] = record
    end
    if ARGV[i + 3] == '1' then
      named = true
      redis.call('ZADD', sent, now, id)
    end
  end
  if ARGV[2] == '1' and added == 0 then
    -- WAIT counts what this connection wrote: write the entry over itself.
    local kept = redis.call('HGET', data, id)
    if kept then redis.call('HSET', data, id, kept) end
  end
end

if named then
  redis.call('ZREMRANGEBYSCORE', sent, '-inf', now - REMEMBER)
  redis.call('PEXPIRE', sent, REMEMBER)
end
if #records > 0 and redis.call('LPUSH', pending, unpack(records)) == #records then
  -- It was empty, so nobody else has rung: others pass the token on while something is left.
  redis.call('ZADD', wake, 0, '1')
end
return added
