#!lua flags=no-writes
-- List replies that nobody may want any more: their time is over, and that for which they are kept.
--
-- KEYS  1 expiry  ZSET  id -> when the reply may go (see reply.lua)
-- ARGV  1 limit  how many to return at most
--
-- Returns ids, those that expired first at the front.

local expiry, limit = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- What expired more than a minute ago is gone.
return redis.call('ZRANGE', expiry, now - 60000, now, 'BYSCORE', 'LIMIT', 0, limit)
