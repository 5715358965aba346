#!lua
-- Add parts to a reply.
--
-- KEYS  1 entry  HASH  the reply (see reply.lua); here parts (how many were emitted, which is the
--                      index of the next one), bytes (how many the stream holds) and emitter (the
--                      token of the last call, which may come twice)
--       2 parts  STREAM  INDEX+1-0 -> series, the start that emitted it, and its payload; the oldest
--                      ones go when there are ten thousand, or sixteen mebibytes
-- ARGV  1 handle  the lease of whoever emits: it must be that of the reply's last start
--       2 owner   the owner, or empty
--       3 token   random token of this call
--       then the payloads
--
-- Returns 1, or 0 if the reply is not pending or this is not its last start.
-- Declares no flags, so that at maxmemory the server refuses it before it begins.

local entry, parts = KEYS[1], KEYS[2]
local handle, owner, token = ARGV[1], ARGV[2], ARGV[3]
local MOST, MOST_BYTES, CHUNK, LONGEST_NUMBER = 10000, 16777216, 16, 14

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', entry, 'state', 'expires', 'handle', 'owner', 'emitter', 'series',
  'parts', 'bytes')
local state, holder, owned, emitter = found[1], found[3], found[4], found[5]

local function count(text)
  return text and #text <= LONGEST_NUMBER and string.find(text, '^%d+$') and tonumber(text) or 0
end

local expires, series, emitted, bytes =
  count(found[2]), count(found[6]), count(found[7]), count(found[8])
if state ~= 'pending' or now >= expires or holder ~= handle then return 0 end
if owner ~= '' and owned and owned ~= '' and owned ~= owner then return 0 end
if emitter == token or #ARGV == 3 then return 1 end

-- Written before the parts: nothing may have an index twice, whatever comes between.
local first = emitted
emitted = emitted + #ARGV - 3
redis.call('HSET', entry, 'parts', string.format('%.0f', emitted), 'emitter', token)
for i = 4, #ARGV do
  local index = string.format('%.0f', first + i - 3)
  redis.call('XADD', parts, index .. '-0', 's', series, 'p', ARGV[i])
  bytes = bytes + #ARGV[i]
end
if first == 0 then
  redis.call('PEXPIREAT', parts, math.max(redis.call('PEXPIRETIME', entry), expires))
end

local held = emitted > MOST and redis.call('XLEN', parts) or 0
while held > MOST or bytes > MOST_BYTES do
  local oldest = redis.call('XRANGE', parts, '-', '+', 'COUNT', CHUNK)
  if #oldest == 0 then
    bytes = 0
    break
  end
  local dropped
  for _, one in ipairs(oldest) do
    dropped = string.match(one[1], '^%d+')
    bytes, held = math.max(bytes - #(one[2][4] or ''), 0), held - 1
    if held <= MOST and bytes <= MOST_BYTES then break end
  end
  redis.call('XTRIM', parts, 'MINID', '=', dropped .. '-1')
end
redis.call('HSET', entry, 'bytes', string.format('%.0f', bytes))
return 1
