#!lua flags=allow-oom
-- Acknowledge, bring back what has come due, and lease, in one step.
--
-- KEYS  1 pending    LIST  records that wait, next one at the tail (see put.lua)
--       2 invisible  ZSET  leases: ID|ENQUEUED|DELIVERIES|NACKS|FIRST|TOKEN -> when it runs out.
--                          The member is the receipt handle: one ZSCORE proves it and its expiry
--       3 data       HASH  id -> payload
--       4 delayed    ZSET  record -> when it becomes visible
--       5 wake       ZSET  one token, there while somebody should look into pending
-- ARGV  1 how many to lease
--       2 for how many milliseconds
--       3 "1" to bring back what is due even if enough is pending
--       4 "1" if the caller took the wake token, and passes it on if something is left
--       5 milliseconds a message is kept, 0 for ever
--       6 "1" if the acknowledgements may be the repeat of a call whose answer was lost
--       7 number of handles to acknowledge
--       8 random token of this call, part of each handle
--       then the handles to acknowledge, and after them ids: lease only these
--
-- Returns { acknowledged, leases found expired, messages dropped, milliseconds until the next
-- one is due or -1, the server's time in milliseconds, handle, payload, handle, payload, ... };
-- acknowledged has a character for each handle: 1 done, 0 refused, 2 (only in a repeat) refused
-- and the message is gone.

local pending, invisible, data, delayed, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local PROMOTE, CHUNK, DROP = 500, 1000, 10000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count, kept = tonumber(ARGV[1]), tonumber(ARGV[5])
local passes_on, handles = tonumber(ARGV[4]), tonumber(ARGV[7])
local expired, dropped, next_due = 0, 0, -1

local function id_of(record)
  return string.sub(record, 1, string.find(record, '|', 1, true) - 1)
end

-- A character for each handle. Whether it was held is asked for all before the first is removed.
local function acknowledge()
  local ends = redis.call('ZMSCORE', invisible, unpack(ARGV, 9, 8 + handles))
  local held, ids, answers = {}, {}, {}
  for i = 1, handles do
    local answer, handle, at = '0', ARGV[8 + i], ends[i]
    if at and tonumber(at) > now then
      held[#held + 1], ids[#ids + 1] = handle, id_of(handle)
      answer = '1'
    elseif ARGV[6] == '1' and redis.call('HEXISTS', data, id_of(handle)) == 0 then
      answer = '2'
    end
    answers[i] = answer
  end
  if #held > 0 then
    redis.call('HDEL', data, unpack(ids))
    redis.call('ZREM', invisible, unpack(held))
  end
  return table.concat(answers)
end

local acknowledged = handles > 0 and acknowledge() or ''

-- Most looks want one message and find one that was never leased: half the work of the rest.
if count == 1 and #ARGV == 8 + handles and ARGV[3] == '0' and passes_on == 0 and kept == 0 then
  local record = redis.call('LINDEX', pending, -1)
  local id = record and string.match(record, '^([^|]*)|[^|]*$')
  local payload = id and redis.call('HGET', data, id)
  if payload then
    local handle = record .. '|1|0|' .. now .. '|' .. ARGV[8]
    redis.call('ZADD', invisible, now + ARGV[2], handle)
    redis.call('RPOP', pending)
    return { acknowledged, 0, 0, -1, now, handle, payload }
  end
end

-- Milliseconds until the first member is due: 0 or less if it is now, nil if there is none.
local function due_in(key)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return first[2] and tonumber(first[2]) - now
end

local function bring_back(key, pattern)
  local due = redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, PROMOTE)
  local records = {}
  for i, member in ipairs(due) do records[i] = string.match(member, pattern) end
  if #due > 0 then
    redis.call('LPUSH', pending, unpack(records))
    redis.call('ZREM', key, unpack(due))
  end
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

local HEAD = 5
local reply = { '', 0, 0, 0, now }

-- Lease records, the last one first; they are still in pending, the caller removes them after.
local function lease(records)
  local ids, leases = {}, {}
  for i = 1, #records do ids[i] = id_of(records[i]) end
  local payloads = redis.call('HMGET', data, unpack(ids))
  for i = #records, 1, -1 do
    local record = records[i]
    local base, enqueued, deliveries, nacks, first = record, nil, 0, 0, now
    if string.find(record, '|', #ids[i] + 2, true) then
      base, deliveries, nacks, first = string.match(record, '^([^|]*|[^|]*)|(%d+)|(%d+)|(%d+)$')
    end
    if kept > 0 then enqueued = string.sub(base, #ids[i] + 2) end
    if kept > 0 and now - tonumber(enqueued) > kept then
      redis.call('HDEL', data, ids[i])
      dropped = dropped + 1
    elseif payloads[i] then
      local handle = base .. '|' .. (deliveries + 1) .. '|' .. nacks .. '|' .. first
        .. '|' .. ARGV[8] .. #reply
      leases[#leases + 1] = now + ARGV[2]
      leases[#leases + 1] = handle
      reply[#reply + 1] = handle
      reply[#reply + 1] = payloads[i]
    end
  end
  if #leases > 0 then redis.call('ZADD', invisible, unpack(leases)) end
end

-- Drop what is older than the queue keeps it, up to a bound; first deliveries come oldest first.
local function drop_old()
  while dropped < DROP do
    local records, old = redis.call('LRANGE', pending, -100, -1), {}
    for i = #records, 1, -1 do
      if now - tonumber(string.match(records[i], '^[^|]*|(%d+)')) <= kept then break end
      old[#old + 1] = id_of(records[i])
    end
    if #old == 0 then return end
    redis.call('HDEL', data, unpack(old))
    redis.call('LTRIM', pending, 0, -#old - 1)
    dropped = dropped + #old
  end
end

-- Lease the next ones; true if something is left in pending.
local function lease_next(wanted)
  if wanted == 0 then return false end
  if kept > 0 then drop_old() end
  -- One more than wanted, if it matters whether more is there.
  local records = redis.call('LRANGE', pending, -wanted - passes_on, -1)
  local left = #records > wanted
  if left then table.remove(records, 1) end
  if #records == 0 then return false end
  lease(records)
  redis.call('LTRIM', pending, 0, -#records - 1)
  return left
end

if #ARGV > 8 + handles then
  promote()
  local found = find(9 + handles)
  if #found > 0 then lease(found) end
  for _, record in ipairs(found) do redis.call('LREM', pending, -1, record) end
else
  local always = ARGV[3] == '1'
  local promoted = always and promote() or 0
  local left = lease_next(count)
  local short = count - (#reply - HEAD) / 2
  if short > 0 and not always then
    promoted = promote()
    if promoted > 0 then left = lease_next(short) end
  end
  if left or promoted > 0 then redis.call('ZADD', wake, 0, '1') end
  if dropped >= DROP then next_due = 0 end
end

reply[1], reply[2], reply[3] = acknowledged, expired, dropped
reply[4] = #reply > HEAD and -1 or next_due
return reply
