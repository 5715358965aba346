#!lua flags=allow-oom
-- Cancel messages: one that waits is removed, the payload of one that is leased is replaced by "-".
-- Whoever comes upon that payload removes the message.
--
-- KEYS  1 pending    LIST  records that wait (see put.lua)
--       2 invisible  ZSET  leases: handle -> when it runs out (see lease.lua)
--       3 data       HASH  id -> payload
--       4 delayed    ZSET  record -> when it becomes visible
--       5 taken      HASH  id -> the payload that an attempt of this very call found, for a minute
-- ARGV  1 begin     how many records of pending and of delayed were looked at before this
--       2 repeated  "1" if this may be the repeat of a call whose answer was lost
--       then the ids
--
-- Returns { where to go on, or -1, payload or nothing, ... }. A deep queue is looked through in
-- several calls, so that no server stands still for it; until its record is found, or if it never
-- is, a message that waits counts as pending, and is dropped when it would be leased.

local pending, invisible, data, delayed, taken = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local begin, repeated = tonumber(ARGV[1]), ARGV[2] == '1'
local CHUNK, MOST, OVERLAP, GONE, LASTS = 1000, 10000, 100, '-', 60000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answer, wanted, missing, removals = { -1 }, {}, 0, {}

local function want(id)
  if wanted[id] then return end
  wanted[id] = true
  missing = missing + 1
end

for i = 3, #ARGV do
  local id = ARGV[i]
  local payload = redis.call('HGET', data, id)
  if payload == GONE then
    if begin > 0 or repeated then want(id) end
    payload = nil
  elseif payload and begin == 0 then
    redis.call('HSET', data, id, GONE)
    redis.call('HSET', taken, id, payload)
    want(id)
  end
  if repeated and not payload then payload = redis.call('HGET', taken, id) end
  answer[i - 1] = payload or false
end
if begin == 0 and missing > 0 then redis.call('PEXPIRE', taken, LASTS) end

-- The message of this record was found; what waits goes, what is leased stays for its holder.
local function find(record, is_leased)
  local id = string.match(record, '^[^|]*')
  if not wanted[id] then return false end
  wanted[id] = nil
  missing = missing - 1
  if not is_leased then redis.call('HDEL', data, id) end
  return not is_leased
end

if begin == 0 and missing > 0 then
  for rank = 0, redis.call('ZCARD', invisible), CHUNK do
    local found = redis.call('ZRANGE', invisible, rank, rank + CHUNK - 1, 'WITHSCORES')
    for i = 1, #found, 2 do
      if find(found[i], tonumber(found[i + 1]) > now) then
        removals[#removals + 1] = { 'ZREM', invisible, found[i] }
      end
    end
  end
end

-- From the end at which records are added: they cannot slip through between two calls.
local last, more = begin + MOST - 1, false
for at = begin, last, CHUNK do
  if missing == 0 then break end
  local records = redis.call('LRANGE', pending, at, at + CHUNK - 1)
  local later = redis.call('ZRANGE', delayed, at, at + CHUNK - 1, 'REV')
  for _, record in ipairs(records) do
    if find(record) then removals[#removals + 1] = { 'LREM', pending, 1, record } end
  end
  for _, record in ipairs(later) do
    if find(record) then removals[#removals + 1] = { 'ZREM', delayed, record } end
  end
  more = #records == CHUNK or #later == CHUNK
  if not more then break end
end
-- Not before: every removal moves those behind it.
for _, removal in ipairs(removals) do redis.call(unpack(removal)) end
if missing > 0 and more then answer[1] = begin + MOST - OVERLAP end
return answer
