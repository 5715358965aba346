#!lua flags=no-writes
-- Tell what has become of leases.
--
-- KEYS  1 invisible  ZSET  leases: handle -> when it runs out (see lease.lua)
--       2 data       HASH  id -> payload, "-" if the message was cancelled (see cancel.lua)
-- ARGV  the handles
--
-- Returns a character for each handle: 1 held, 0 ended, 2 held but cancelled.

local invisible, data = KEYS[1], KEYS[2]
local CHUNK, GONE = 1000, '-'

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answers = {}

for first = 1, #ARGV, CHUNK do
  local last = math.min(first + CHUNK - 1, #ARGV)
  local ends = redis.call('ZMSCORE', invisible, unpack(ARGV, first, last))
  for i = first, last do
    local at, id = ends[i - first + 1], string.match(ARGV[i], '^[^|]*')
    answers[i] = at and tonumber(at) > now and '1' or '0'
    -- Its length first: payloads are large, and nearly none is cancelled.
    if answers[i] == '1' and redis.call('HSTRLEN', data, id) == #GONE
      and redis.call('HGET', data, id) == GONE then
      answers[i] = '2'
    end
  end
end
return table.concat(answers)
