#!lua flags=allow-oom
-- One step on one reply.
--
-- KEYS  1 entry   HASH  state (pending, resolved, cancelled or consumed), payload, created,
--                       expires, resolved (milliseconds by the server's clock) and taker, the
--                       token of the call that consumed it; removed by the server itself a
--                       minute after it has expired
--       2 bell    LIST  one token once the reply is settled; waiters rotate it, so all wake
--       3 expiry  ZSET  id -> when the reply expires, for those that share this hash tag
-- ARGV  1 create, resolve, cancel, get, consume, delete or reap (delete if expired)
--       2 the reply's id
--       3 "1" if this may be the repeat of a call whose answer was lost
--       4 milliseconds to live (create), the payload (resolve) or a random token (consume)
--
-- Returns 1 or 0; for get and consume { state, payload, created, expires, resolved }, or nothing.

local entry, bell, expiry = KEYS[1], KEYS[2], KEYS[3]
local id, repeated, value = ARGV[2], ARGV[3] == '1', ARGV[4]
local LINGER, WAKE = 60000, 1000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local row = redis.call('HMGET', entry, 'state', 'payload', 'created', 'expires', 'resolved', 'taker')
local state = row[1]
local expired = state and now >= tonumber(row[4])

local function lives_until(when)
  redis.call('HSET', entry, 'expires', when)
  redis.call('PEXPIREAT', entry, when + LINGER)
  redis.call('ZADD', expiry, when, id)
end

-- Rings on for a while after a removal too: somebody may have looked before and block after it.
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
  return { expired and 'expired' or state, row[2] or '', row[3], row[4], row[5] or '' }
end

local step = {}

function step.create()
  if state and state ~= 'consumed' then return (repeated and state == 'pending') and 1 or 0 end
  redis.call('DEL', entry, bell)
  redis.call('HSET', entry, 'state', 'pending', 'created', now)
  lives_until(now + value)
  redis.call('ZREMRANGEBYSCORE', expiry, '-inf', now - LINGER)
  return 1
end

function step.resolve()
  if state == 'pending' and not expired then
    redis.call('HSET', entry, 'state', 'resolved', 'payload', value, 'resolved', now)
    lives_until(math.max(tonumber(row[4]), now + LINGER))
    ring(2 * LINGER)
    return 1
  end
  return (repeated and state == 'resolved' and row[2] == value) and 1 or 0
end

function step.cancel()
  if state == 'pending' and not expired then
    redis.call('HSET', entry, 'state', 'cancelled')
    ring(2 * LINGER)
    return 1
  end
  return (repeated and state == 'cancelled') and 1 or 0
end

function step.get()
  if state and state ~= 'consumed' then return shown() end
end

function step.consume()
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

function step.delete()
  if not state or state == 'consumed' then return repeated and 1 or 0 end
  remove()
  return 1
end

function step.reap()
  if not state then redis.call('ZREM', expiry, id) end
  if not expired or state == 'consumed' then return 0 end
  remove()
  return 1
end

return step[ARGV[1]]()
