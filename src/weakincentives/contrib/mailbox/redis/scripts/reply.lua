#!lua flags=allow-oom
-- One step on one reply.
--
-- KEYS  1 entry   HASH  state (pending, resolved, cancelled or consumed), payload, created,
--                       expires, resolved (milliseconds by the server's clock), owner (the
--                       queue and the message that it belongs to, if anybody has said so) and
--                       taker, the token of the call that consumed it; removed by the server
--                       itself a minute after it has expired
--       2 bell    LIST  one token once the reply is settled, for as long as there is an entry;
--                       waiters rotate it, so all wake
--       3 expiry  ZSET  id -> when the reply expires, for those that share this hash tag
-- ARGV  1 step      create, resolve, cancel, get, consume, delete or reap (delete if expired)
--       2 id        the reply's id
--       3 repeated  "1" if this may be the repeat of a call whose answer was lost
--       4 value     milliseconds to live (create), the payload (resolve) or a random token (consume)
--       5 owner     the owner, or empty (create and resolve)
--
-- Returns 1 or 0; for get and consume { state, payload, created, expires, resolved, owner }, or
-- nothing.

local entry, bell, expiry = KEYS[1], KEYS[2], KEYS[3]
local step, id, repeated = ARGV[1], ARGV[2], ARGV[3] == '1'
local value, owner = ARGV[4], ARGV[5]
local LINGER, WAKE = 60000, 1000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local row = redis.call('HMGET', entry, 'state', 'payload', 'created', 'expires', 'resolved',
  'taker', 'owner')
local state = row[1]
local expired = state and now >= tonumber(row[4])

local function lives_until(when)
  redis.call('HSET', entry, 'expires', when)
  redis.call('PEXPIREAT', entry, when + LINGER)
  redis.call('ZADD', expiry, when, id)
end

-- The bell stays for a while after a removal: a waiter may have looked before and block after.
local function ring(lasts)
  if redis.call('LLEN', bell) == 0 then redis.call('RPUSH', bell, '1') end
  redis.call('PEXPIRE', bell, lasts)
end

local function remove()
  redis.call('DEL', entry)
  redis.call('ZREM', expiry, id)
  ring(WAKE)
end

local function shown()
  return { expired and 'expired' or state, row[2] or '', row[3], row[4], row[5] or '', row[7] or '' }
end

local steps = {}

function steps.create()
  if state and state ~= 'consumed' then return (repeated and state == 'pending') and 1 or 0 end
  redis.call('DEL', entry)
  redis.call('DEL', bell)
  redis.call('HSET', entry, 'state', 'pending', 'created', now, 'owner', owner)
  lives_until(now + value)
  redis.call('ZREMRANGEBYSCORE', expiry, '-inf', now - LINGER)
  return 1
end

function steps.resolve()
  if owner ~= '' and row[7] and row[7] ~= '' and row[7] ~= owner then return 0 end
  if state == 'pending' and not expired then
    redis.call('HSET', entry, 'state', 'resolved', 'payload', value, 'resolved', now)
    local expires = math.max(tonumber(row[4]), now + LINGER)
    lives_until(expires)
    ring(expires + LINGER - now)
    return 1
  end
  return (repeated and state == 'resolved' and row[2] == value) and 1 or 0
end

function steps.cancel()
  if state == 'pending' and not expired then
    redis.call('HSET', entry, 'state', 'cancelled')
    ring(tonumber(row[4]) + LINGER - now)
    return 1
  end
  return (repeated and state == 'cancelled') and 1 or 0
end

function steps.get()
  if state and state ~= 'consumed' then return shown() end
end

function steps.consume()
  if state == 'resolved' and not expired then
    -- Kept for a while, so that the repeat of this very call finds what it has taken.
    redis.call('HSET', entry, 'state', 'consumed', 'taker', value)
    redis.call('PEXPIRE', entry, LINGER)
    redis.call('ZREM', expiry, id)
    ring(WAKE)
    return shown()
  end
  if state == 'consumed' and row[6] == value then
    state = 'resolved'
    return shown()
  end
end

function steps.delete()
  if not state or state == 'consumed' then return repeated and 1 or 0 end
  remove()
  return 1
end

function steps.reap()
  if not state then redis.call('ZREM', expiry, id) end
  if not expired or state == 'consumed' then return 0 end
  remove()
  return 1
end

return steps[step]()
