#!lua flags=allow-oom
-- Acknowledge, bring back what has come due, and lease, in one step.
--
-- KEYS  1 pending    LIST  records that wait, next one at the tail (see put.lua)
--       2 invisible  ZSET  leases: ID|ENQUEUED|DELIVERIES|NACKS|FIRST|TOKEN -> when it runs out,
--                          with |PUTOFFS before the token if the message was ever put off. The
--                          member is the receipt handle: one ZSCORE proves it and its expiry
--       3 data       HASH  id -> payload, "-" if the message was cancelled (see cancel.lua)
--       4 delayed    ZSET  record -> when it becomes visible
--       5 wake       ZSET  one token, present while a consumer should look into pending
--       6 unreadable LIST  what was found in pending and cannot be leased: the record and, on the
--                          lines after it, its payload if there is one; the last hundred of them
--       7 paused     STRING  there while the queue is paused: nothing is leased then but by its id
-- ARGV  1 most      how many to lease at most
--       2 lasts     for how many milliseconds
--       3 promotes  "1" to bring back what is due even if enough is pending
--       4 woken     "1" if the caller took the wake token, and passes it on if something is left
--       5 keeps     milliseconds a message is kept, 0 for ever
--       6 repeated  "1" if the acknowledgements may be the repeat of a call whose answer was lost
--       7 handles   number of handles to acknowledge
--       8 token     random token of this call, part of each handle
--       then the handles to acknowledge, and after them ids: lease only these
--
-- Returns { acknowledged, leases found expired, messages dropped, milliseconds until the next
-- one is due or -1, the server's time in milliseconds, records set aside, handle, payload, handle,
-- payload, ... }; acknowledged has a character for each handle: 1 done, 0 refused, 2 (only in a
-- repeat) refused and the message is gone. Payloads are eight mebibytes together, or one message.
--
-- Anybody may have written what is in the keys. A record whose id names a payload is leased, with
-- zeros and the present for what cannot be read of it; any other is set aside, unless its message
-- was cancelled.

local pending, invisible, data, delayed, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local unreadable, paused = KEYS[6], KEYS[7]
local PROMOTE, CHUNK, DROP, ASIDE = 500, 1000, 10000, 1000
local MOST_BYTES, SOME, LONGEST_ID, LONGEST_NUMBER, GONE = 8388608, 32, 512, 14, '-'
local KEPT_ASIDE, KEPT_RECORD, KEPT_PAYLOAD, FAR = 100, 1000, 65536, 1000000000000
local TOKEN_LASTS = 3600000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local most, lasts, promotes = tonumber(ARGV[1]), ARGV[2], ARGV[3] == '1'
local woken, keeps, repeated = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'
local handles, token = tonumber(ARGV[7]), ARGV[8]
local expired, dropped, aside, cancelled, next_due = 0, 0, 0, 0, -1

local function id_of(record)
  return string.match(record, '^[^|]*')
end

-- A character for each of these handles.
local function acknowledge(first, last)
  local ends = redis.call('ZMSCORE', invisible, unpack(ARGV, first, last))
  local held, ids, answers = {}, {}, {}
  for i = first, last do
    local answer, handle, at = '0', ARGV[i], ends[i - first + 1]
    if at and tonumber(at) > now then
      held[#held + 1], ids[#ids + 1] = handle, id_of(handle)
      answer = '1'
    elseif repeated and redis.call('HEXISTS', data, id_of(handle)) == 0 then
      answer = '2'
    end
    answers[#answers + 1] = answer
  end
  if #held > 0 then
    redis.call('HDEL', data, unpack(ids))
    redis.call('ZREM', invisible, unpack(held))
  end
  return table.concat(answers)
end

local acknowledged = ''
for first = 9, 8 + handles, CHUNK do  -- for Lua cannot pass any number to one command
  acknowledged = acknowledged .. acknowledge(first, math.min(first + CHUNK - 1, 8 + handles))
end

-- Before anything else, which may fail: a repeat finds the messages gone, and does not do this.
if KEYS.acknowledged then KEYS.acknowledged(acknowledged) end  -- only in answer.lua

if #ARGV == 8 + handles and redis.call('EXISTS', paused) == 1 then
  return { acknowledged, 0, 0, -1, now, 0 }
end

-- Most looks want one message and find one that was never leased: half the work of the rest.
if most == 1 and #ARGV == 8 + handles and not promotes and woken == 0 and keeps == 0 then
  local record = redis.call('LINDEX', pending, -1)
  local id = record and string.match(record, '^([%w_.:=%-]+)|%d+$')
  local whole = id and #id <= LONGEST_ID and #record <= #id + 1 + LONGEST_NUMBER
  local payload = whole and redis.call('HGET', data, id)
  if payload and payload ~= GONE then
    local handle = record .. '|1|0|' .. now .. '|' .. token
    redis.call('ZADD', invisible, now + lasts, handle)
    redis.call('RPOP', pending)
    return { acknowledged, 0, 0, -1, now, 0, handle, payload }
  end
end

local HEAD = 6
local reply, bytes = { '', 0, 0, 0, now, 0 }, 0

-- Once something is leased, a key of another type must not end this: its answer would be lost.
local function call(...)
  if #reply > HEAD then return redis.pcall(...) end
  return redis.call(...)
end

-- Milliseconds until the first member is due: 0 or less if it is now, nil if there is none.
local function due_in(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) - now
end

-- Remove a message if it was cancelled while it was leased; true if so.
local function drop_cancelled(id)
  -- Its length first: payloads are large, and nearly none is cancelled.
  if redis.call('HSTRLEN', data, id) ~= #GONE or redis.call('HGET', data, id) ~= GONE then
    return false
  end
  return redis.call('HDEL', data, id) == 1
end

local function bring_back(key, pattern)
  local due = redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, PROMOTE)
  local records = {}
  for _, member in ipairs(due) do
    if key ~= invisible or not drop_cancelled(id_of(member)) then
      records[#records + 1] = string.match(member, pattern) or member
    end
  end
  if #records > 0 then redis.call('LPUSH', pending, unpack(records)) end
  if #due > 0 then redis.call('ZREM', key, unpack(due)) end
  return #due
end

local function promote()
  local back, moved = due_in(invisible), 0
  if back and back <= 0 then
    expired = bring_back(invisible, '^(.*)|[^|]*$')
    moved = expired
    back = due_in(invisible)
  end
  local visible = due_in(delayed)
  if visible and visible <= 0 then
    moved = moved + bring_back(delayed, '^.*$')
    visible = due_in(delayed)
  end
  next_due = math.max(math.min(back or math.huge, visible or math.huge), 0)
  if next_due == math.huge then next_due = -1 end
  next_due = math.min(next_due, FAR)
  return moved
end

-- The records of these ids, wherever they stand in pending.
local function find(from)
  local wanted, missing, found = {}, 0, {}
  for i = from, #ARGV do
    if not wanted[ARGV[i]] then missing = missing + 1 end
    wanted[ARGV[i]] = true
  end
  local last = -1
  while missing > 0 do
    local chunk = redis.call('LRANGE', pending, last - CHUNK + 1, last)
    for i = #chunk, 1, -1 do
      if wanted[id_of(chunk[i])] then
        table.insert(found, 1, chunk[i])
        missing = missing - 1
      end
    end
    if #chunk < CHUNK then break end
    last = last - CHUNK
  end
  return found
end

-- A field of a record as a number; nil if it is not a usable number.
local function number(text)
  return text and #text <= LONGEST_NUMBER and tonumber(text) or nil
end

-- Add a record to what was set aside; the caller removes it from pending after.
local function set_aside(record, id, payload)
  local kept = string.sub(record, 1, KEPT_RECORD)
  if payload then kept = kept .. '\n' .. string.sub(payload, 1, KEPT_PAYLOAD) end
  redis.call('LPUSH', unreadable, kept)
  redis.call('LTRIM', unreadable, 0, KEPT_ASIDE - 1)
  if payload then redis.call('HDEL', data, id) end
  aside = aside + 1
end

-- The handle that a record is leased by; nil if it has been kept for long enough.
local function handle_of(record, id)
  local base, more = record, '|1|0|' .. now
  local enqueued = number(string.match(record, '^|(%d+)$', #id + 1))
  if not enqueued then
    local sent, counts = string.match(record, '^|(%d+)(.*)$', #id + 1)
    local deliveries, nacks, first, put_offs =
      string.match(counts or '', '^|(%d+)|(%d+)|(%d+)|?(%d*)$')
    enqueued = number(sent)
    base = id .. '|' .. (enqueued and sent or now)
    if number(deliveries) and number(nacks) and number(first) then
      -- As digits: Lua would write a large number with an exponent, which nobody reads.
      more = string.format('|%.0f|', deliveries + 1) .. nacks .. '|' .. first
      if number(put_offs) then more = more .. '|' .. put_offs end
    end
  end
  if keeps > 0 and now - (enqueued or now) > keeps then return end
  return base .. more .. '|' .. token .. #reply
end

-- Lease records, the last one first, until there are enough bytes. Returns how many were taken;
-- they are still in pending, the caller removes them after.
local function lease(records)
  local leases, taken = {}, 0
  while taken < #records and bytes < MOST_BYTES do
    -- A few at a time, so that records that will not be leased are not read.
    local ids, last = {}, #records - taken
    for i = last, math.max(last - SOME + 1, 1), -1 do ids[#ids + 1] = id_of(records[i]) end
    local payloads = redis.call('HMGET', data, unpack(ids))
    for n, id in ipairs(ids) do
      local record, payload = records[last - n + 1], payloads[n]
      if payload and bytes > 0 and bytes + #payload > MOST_BYTES then
        bytes = MOST_BYTES
        break
      end
      taken = taken + 1
      if payload == GONE then
        redis.call('HDEL', data, id)
        cancelled = cancelled + 1
      elseif not payload or #id > LONGEST_ID or not string.find(id, '^[!-~]+$') then
        set_aside(record, id, payload)
      else
        local handle = handle_of(record, id)
        if handle then
          leases[#leases + 1] = now + lasts
          leases[#leases + 1] = handle
          reply[#reply + 1] = handle
          reply[#reply + 1] = payload
          bytes = bytes + #payload
        else
          redis.call('HDEL', data, id)
          dropped = dropped + 1
        end
      end
    end
  end
  if #leases > 0 then redis.call('ZADD', invisible, unpack(leases)) end
  return taken
end

-- Drop what is older than the queue keeps it, up to a bound; first deliveries come oldest first.
local function drop_old()
  while dropped < DROP do
    local records, old = redis.call('LRANGE', pending, -100, -1), {}
    for i = #records, 1, -1 do
      if now - (number(string.match(records[i], '^[^|]*|(%d+)')) or now) <= keeps then break end
      old[#old + 1] = id_of(records[i])
    end
    if #old == 0 then return end
    redis.call('HDEL', data, unpack(old))
    redis.call('LTRIM', pending, 0, -#old - 1)
    dropped = dropped + #old
  end
end

-- Lease the next ones, as many as are still wanted; true if something is left in pending.
local function lease_next()
  if most == 0 then return false end
  if keeps > 0 then drop_old() end
  local left, before
  repeat
    local wanted = most - (#reply - HEAD) / 2
    -- One more than wanted, if it matters whether more is there.
    local records = redis.call('LRANGE', pending, -wanted - woken, -1)
    left, before = #records > wanted, aside + cancelled
    if left then table.remove(records, 1) end
    if #records == 0 then return false end
    local taken = lease(records)
    redis.call('LTRIM', pending, 0, -taken - 1)
    left = left or taken < #records
    -- What was set aside, or is cancelled, makes room for what stands behind it.
  until aside + cancelled == before or aside + cancelled >= ASIDE or bytes >= MOST_BYTES
  return left
end

if #ARGV > 8 + handles then
  promote()
  local found = find(9 + handles)
  local taken = lease(found)
  for i = #found - taken + 1, #found do redis.call('LREM', pending, -1, found[i]) end
else
  local promoted = promotes and promote() or 0
  local left = lease_next()
  if (#reply - HEAD) / 2 < most and bytes < MOST_BYTES and not promotes then
    promoted = promote()
    if promoted > 0 then left = lease_next() end
  end
  if left or promoted > 0 then
    call('ZADD', wake, 0, '1')
    call('PEXPIRE', wake, TOKEN_LASTS)
  end
  if dropped >= DROP or aside + cancelled >= ASIDE then next_due = 0 end
end

reply[1], reply[2], reply[3], reply[6] = acknowledged, expired, dropped, aside
reply[4] = #reply > HEAD and -1 or next_due
return reply
