#!lua flags=allow-oom
-- Forget soon the ids that were to be remembered for long, because their messages are done.
--
-- KEYS  1 sent  ZSET  id chosen by the sender -> when first sent (see put.lua)
-- ARGV  1 lasts  milliseconds that ids are known from now on
--       then the ids

local sent, lasts = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local scores = {}
for i = 2, #ARGV do
  scores[#scores + 1] = now
  scores[#scores + 1] = ARGV[i]
end
redis.call('ZADD', sent, 'XX', 'LT', unpack(scores))
-- So that nothing stays behind of a queue that gets no more messages.
local last = redis.call('ZRANGE', sent, -1, -1, 'WITHSCORES')
if last[2] then redis.call('PEXPIREAT', sent, string.format('%.0f', last[2] + lasts)) end
