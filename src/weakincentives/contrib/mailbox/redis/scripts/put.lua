#!lua
-- Add messages, all or none; an id that is queued, or was sent under five minutes ago, is left.
--
-- KEYS  1 pending    LIST  records that wait, next one at the tail: ID|ENQUEUED for a message that
--                          was never leased, ID|ENQUEUED|DELIVERIES|NACKS|FIRST otherwise, and
--                          |PUTOFFS after that if the message was ever put off
--                          (times in milliseconds by the server's clock)
--       2 data       HASH  id -> payload; every message has its one entry here until it is gone,
--                          which is "-" if it was cancelled while it was leased
--       3 delayed    ZSET  record -> when it becomes visible
--       4 wake       ZSET  one token, present while a consumer should look into pending. It expires
--                          after an hour, so that an empty queue leaves nothing behind: one that is
--                          so old has nobody who waits for it, and who comes to wait looks first
--       5 sent       ZSET  id chosen by the sender -> when first sent; known for five minutes from
--                          then. An id that is to be known for longer is dated so much later
--       and only if the sender of the one message waits for a reply, made in the same step:
--       6 entry      HASH  the pending reply (see reply.lua)
--       7 expiry     ZSET  its id -> when it may go
-- ARGV  1 max_size    most messages the queue may hold, 0 for any number
--       2 replicated  "1" if WAIT follows, so that a send that changes nothing must still write
--       3 details     empty, or for each message its delay in milliseconds, and for how many its
--                     id is to be known if the sender chose it, else 0
--       then two for each message: id, payload
--       then, if a reply is waited for: its id, milliseconds to live, its owner, milliseconds to
--       keep it for
--
-- Returns how many were added, or, if there is no room, minus one minus the number held.
-- Declares no flags, so that at maxmemory the server refuses it before it begins.

local pending, data, delayed, wake, sent = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local entry, expiry = KEYS[6], KEYS[7]
local max_size, replicated, details = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3]
local REMEMBER, FORGET, LINGER, TOKEN_LASTS = 300000, 1000, 60000, 3600000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = '|' .. now

local last = entry and #ARGV - 4 or #ARGV

-- Make the pending reply; in the repeat of a call whose answer was lost it is there already.
local function expect()
  if not entry or redis.call('HSETNX', entry, 'state', 'pending') == 0 then return end
  local expires, keep = now + ARGV[last + 2], tonumber(ARGV[last + 4])
  redis.call('HSET', entry, 'created', now, 'expires', expires, 'owner', ARGV[last + 3])
  if keep > 0 then redis.call('HSET', entry, 'keep', keep) end
  local gone = expires + keep
  redis.call('PEXPIREAT', entry, string.format('%.0f', gone + LINGER))
  redis.call('ZADD', expiry, string.format('%.0f', gone), ARGV[last + 1])
  redis.call('ZREMRANGEBYSCORE', expiry, '-inf', now - LINGER)
end

-- The number of messages held if this many more do not fit, else false or nil.
local function too_many(more)
  if max_size == 0 then return end
  local held = redis.call('HLEN', data)
  return held + more > max_size and held
end

-- Adds records to pending or delayed. If that key is of another type, the payloads go again, or
-- these ids would be known and never delivered; returns the error then.
local function place(ids, command, key, ...)
  local length = redis.pcall(command, key, ...)
  if type(length) ~= 'table' then return nil, length end
  redis.call('HDEL', data, unpack(ids))
  return length
end

local function join_line(ids, records)
  local refused, length = place(ids, 'LPUSH', pending, unpack(records))
  if length == #records then
    -- It was empty, so nobody else has rung: others pass the token on while something is left.
    redis.call('ZADD', wake, 0, '1')
    redis.call('PEXPIRE', wake, TOKEN_LASTS)
  end
  return refused
end

local plain, ids, records = details == '', {}, {}

-- Most sends are one message and nothing special. It may be known all the same: the first attempt
-- of a call that was repeated can arrive after the repeat.
if plain and last == 5 and max_size == 0 and not replicated then
  expect()
  if redis.call('HSETNX', data, ARGV[4], ARGV[5]) == 0 then return 0 end
  return join_line({ ARGV[4] }, { ARGV[4] .. stamp }) or 1
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
  return join_line(ids, records) or #ids
end

local delays, named, longest = {}, {}, 0
for delay, known in string.gmatch(details, '(%d+) (%d+)') do
  delays[#delays + 1] = tonumber(delay)
  named[#delays] = known ~= '0' and tonumber(known)
  longest = math.max(longest, tonumber(known))
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
  if replicated and queued[1] then
    -- WAIT counts what this connection wrote: write the entry over itself.
    redis.call('HSET', data, ids[1], queued[1])
  end
  return 0
end

expect()
redis.call('HSET', data, unpack(fields))
local new, later = {}, {}
for i, n in ipairs(added) do
  new[i] = ids[n]
  if (delays[n] or 0) > 0 then
    later[#later + 1] = now + delays[n]
    later[#later + 1] = ids[n] .. stamp
  else
    records[#records + 1] = ids[n] .. stamp
  end
end
local refused = #later > 0 and place(new, 'ZADD', delayed, unpack(later))
refused = refused or #records > 0 and join_line(new, records)
if refused then return refused end
if longest > 0 then
  for _, n in ipairs(added) do
    if named[n] then redis.call('ZADD', sent, now + named[n] - REMEMBER, ids[n]) end
  end
  -- Some at a time: after a pause there may be very many, and everybody waits for a script.
  local old = math.min(redis.call('ZCOUNT', sent, '-inf', now - REMEMBER), FORGET)
  if old > 0 then redis.call('ZREMRANGEBYRANK', sent, 0, old - 1) end
  if redis.call('PTTL', sent) < longest then redis.call('PEXPIRE', sent, longest) end
end
return #added
