#!lua flags=allow-oom
-- One step on one reply.
--
-- KEYS  1 entry   HASH  state (pending, resolved, failed, cancelled or consumed), payload, created,
--                       expires, resolved (milliseconds by the server's clock), owner (the
--                       queue and the message that it belongs to, if anybody has said so) and
--                       taker, the token of the call that consumed it. And only where they are
--                       needed: keep (milliseconds that the caller wants it kept for), ttl (how
--                       long the caller wanted to wait, once expires says something else), the last
--                       start (handle, worker, deliveries, started, series), and what emit.lua
--                       writes (parts, bytes, emitter). Removed by the server itself a minute after
--                       it may go
--       2 bell    LIST  one token once the reply is settled, for as long as there is an entry;
--                       waiters rotate it, so all wake
--       3 expiry  ZSET  id -> when the reply may go, for those that share this hash tag
--       4 parts   STREAM  parts of the reply (see emit.lua), and a last record once it is settled,
--                       if there is a part or a reader: that one blocks here
-- ARGV  1 step      create, reopen, start, prolong, resolve, fail, cancel, get, parts, consume,
--                   delete or reap (delete if its time is over)
--       2 id        the reply's id
--       3 repeated  "1" if this may be the repeat of a call whose answer was lost
--       4 value     milliseconds to live (create, reopen) or to live longer (prolong), the payload
--                   (resolve, fail), the handle (start), a random token (consume) or the index of
--                   the first part (parts)
--       5 owner     the owner, or empty (create, reopen, start, prolong, resolve, fail)
--       6 number    milliseconds to keep (create, reopen), the number of the delivery (start) or
--                   how many parts to return at most (parts)
--       7 worker    who received the message (start)
--
-- Returns 1 or 0; for start, get and consume { state, payload, created, expires, resolved, owner,
-- ttl, keep, handle, worker, deliveries, started, series, parts }, or nothing; for parts that and
-- then number, series, payload of each part, up to a mebibyte or one part. What is empty there is
-- not known.
--
-- Anybody may have written what is in the keys. An entry without a known state or without its
-- expiry is as good as none; what else is not as it should be counts as not known.

local entry, bell, expiry, parts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local step, id, repeated = ARGV[1], ARGV[2], ARGV[3] == '1'
local value, owner, number, worker = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local LINGER, WAKE, LONGEST_NUMBER, CHUNK, MOST_BYTES = 60000, 1000, 14, 64, 1048576
local FIELDS = { 'state', 'payload', 'created', 'expires', 'resolved', 'owner', 'ttl', 'keep',
  'handle', 'worker', 'deliveries', 'started', 'series', 'parts', 'taker', 'bytes' }
local SHOWN = 14
local COUNTED = { 'created', 'expires', 'resolved', 'ttl', 'keep', 'deliveries', 'started', 'series',
  'parts' }
local STATES = { pending = 1, resolved = 1, failed = 1, cancelled = 1, consumed = 1 }

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local row = {}
for i, found in ipairs(redis.call('HMGET', entry, unpack(FIELDS))) do row[FIELDS[i]] = found end
for _, name in ipairs(COUNTED) do
  local text = row[name]
  row[name] = text and #text <= LONGEST_NUMBER and string.find(text, '^%d+$') and tonumber(text)
end
if not STATES[row.state] or not row.expires then row = {} end
row.created = row.created or row.expires
if row.created then row.ttl = row.ttl or math.max(row.expires - row.created, 0) end

local state = row.state
local expired = state and now >= row.expires
local is_pending = state == 'pending' and not expired
-- One that expires is kept as one that is settled.
local over = state and now >= row.expires + (state == 'pending' and row.keep or 0)

-- Numbers as digits: Lua would write a large one with an exponent, which nobody reads.
local function digits(count)
  return string.format('%.0f', count)
end

-- Have the entry and what belongs to it go a minute after this.
local function may_go(at)
  redis.call('PEXPIREAT', entry, digits(at + LINGER))
  if row.parts then redis.call('PEXPIREAT', parts, digits(at + LINGER)) end
  redis.call('ZADD', expiry, digits(at), id)
end

-- The bell stays for a while after a removal: a waiter may have looked before and block after.
local function ring(lasts)
  if redis.call('LLEN', bell) == 0 then redis.call('RPUSH', bell, '1') end
  redis.call('PEXPIRE', bell, digits(lasts))
end

-- Readers of parts block elsewhere: for a record behind the last part.
local function end_parts(order)
  if row.parts then redis.call('XADD', parts, digits(row.parts) .. '-' .. order, 'end', '1') end
end

-- Wake everybody who waits for a reply that goes now.
local function ring_out()
  ring(WAKE)
  if not row.parts then return end
  redis.call('DEL', parts)
  end_parts('1')
  redis.call('PEXPIRE', parts, WAKE)
end

local function remove()
  redis.call('DEL', entry)
  redis.call('ZREM', expiry, id)
  ring_out()
end

local function shown()
  local found = {}
  for i = 1, SHOWN do
    local one = row[FIELDS[i]]
    found[i] = type(one) == 'number' and digits(one) or one or ''
  end
  if expired then found[1] = 'expired' end
  return found
end

local function is_anothers()
  return owner ~= '' and row.owner and row.owner ~= '' and row.owner ~= owner
end

-- Write a pending reply where none is.
local function open(...)
  local keep = tonumber(number) or 0
  local expires = now + value
  redis.call('DEL', bell)
  redis.call('HSET', entry, 'state', 'pending', 'created', now, 'owner', owner,
    'expires', digits(expires), ...)
  if keep > 0 then redis.call('HSET', entry, 'keep', digits(keep)) end
  may_go(expires + keep)
  redis.call('ZREMRANGEBYSCORE', expiry, '-inf', now - LINGER)
end

-- Leave the pending state, with these fields.
local function settle(as, ...)
  local expires = row.expires
  if (row.keep or 0) > 0 then
    expires = now + math.max(row.keep, LINGER)
  elseif as ~= 'cancelled' then
    expires = math.max(expires, now + LINGER)
  end
  redis.call('HSET', entry, 'state', as, 'expires', digits(expires), 'ttl', digits(row.ttl), ...)
  ring(expires + LINGER - now)
  end_parts('*')
  may_go(expires)
end

local steps = {}

function steps.create()
  if state and state ~= 'consumed' then return (repeated and state == 'pending') and 1 or 0 end
  redis.call('DEL', entry)
  redis.call('DEL', parts)
  row = {}
  open()
  return 1
end

function steps.reopen()
  if repeated and is_pending and row.owner == owner then return 1 end
  if state == 'consumed' then return 0 end
  if not expired and (state == 'resolved' or state == 'cancelled') then return 0 end
  redis.call('DEL', entry)
  local kept = {}
  if row.series then kept = { 'series', digits(row.series) } end
  if row.parts then
    for _, one in ipairs({ 'parts', digits(row.parts), 'bytes', row.bytes or '0' }) do
      kept[#kept + 1] = one
    end
    -- The parts go on behind the record that told readers of the end.
    local last = redis.call('XREVRANGE', parts, '+', '-', 'COUNT', 1)[1]
    if last and last[2][1] == 'end' then redis.call('XDEL', parts, last[1]) end
  else
    redis.call('DEL', parts)
  end
  open(unpack(kept))
  return 1
end

function steps.start()
  local later = row.deliveries and row.deliveries > tonumber(number)
  if is_pending and not is_anothers() and not later and row.handle ~= value then
    row.handle, row.worker, row.deliveries = value, worker, tonumber(number)
    row.started, row.series = now, (row.series or 0) + 1
    redis.call('HSET', entry, 'handle', value, 'worker', worker, 'deliveries', number,
      'started', now, 'series', row.series)
  end
  return steps.get()
end

function steps.prolong()
  if not is_pending or is_anothers() then return 0 end
  local expires = row.expires + value
  redis.call('HSET', entry, 'expires', digits(expires), 'ttl', digits(row.ttl))
  may_go(expires + (row.keep or 0))
  return 1
end

local function resolve(as)
  if is_anothers() then return 0 end
  if is_pending then
    settle(as, 'payload', value, 'resolved', now)
    return 1
  end
  return (repeated and state == as and row.payload == value) and 1 or 0
end

function steps.resolve() return resolve('resolved') end

function steps.fail() return resolve('failed') end

function steps.cancel()
  if is_pending then
    settle('cancelled', 'resolved', digits(now))
    return 1
  end
  return (repeated and state == 'cancelled') and 1 or 0
end

function steps.get()
  if state and state ~= 'consumed' then return shown() end
end

-- A reader blocks on the stream after this, so it must learn of the end there.
function steps.parts()
  if not state or state == 'consumed' then return end
  if not row.parts then
    row.parts = 0
    redis.call('HSET', entry, 'parts', 0)
  end
  local answer, bytes, left = shown(), 0, tonumber(number)
  local from = digits(value + 1)
  repeat
    local found = redis.call('XRANGE', parts, from, '+', 'COUNT', math.min(left, CHUNK))
    for _, one in ipairs(found) do
      local index, fields = string.match(one[1], '^(%d+)-0$'), one[2]
      if index and fields[4] then
        if bytes > 0 and bytes + #fields[4] > MOST_BYTES then return answer end
        bytes, left = bytes + #fields[4], left - 1
        answer[#answer + 1] = digits(index - 1)
        answer[#answer + 1] = fields[2]
        answer[#answer + 1] = fields[4]
      end
      from = '(' .. one[1]
    end
  until #found < CHUNK or left <= 0
  return answer
end

function steps.consume()
  if state == 'resolved' and not expired then
    -- Kept for a while, so that the repeat of this very call finds what it has taken.
    redis.call('HSET', entry, 'state', 'consumed', 'taker', value)
    redis.call('PEXPIRE', entry, LINGER)
    redis.call('ZREM', expiry, id)
    ring_out()
    return shown()
  end
  if state == 'consumed' and row.taker == value then
    row.state = 'resolved'
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
  if not over or state == 'consumed' then return 0 end
  remove()
  return 1
end

return steps[step]()
