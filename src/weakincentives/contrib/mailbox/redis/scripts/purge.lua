#!lua flags=allow-oom
-- Remove every message, leased and delayed ones too; handles die with their leases.
--
-- KEYS  1 pending    LIST  records that wait (see put.lua)
--       2 invisible  ZSET  leases (see lease.lua)
--       3 data       HASH  id -> payload
--       4 delayed    ZSET  record -> when it becomes visible
--       5 wake       ZSET  one token, present while a consumer should look into pending
--       6 sent       ZSET  ids chosen by senders: what is sent again after this is sent
--       7 unreadable LIST  what was set aside (see lease.lua)
--
-- Returns how many messages there were.

local data = KEYS[3]
local count = redis.call('HLEN', data)
-- One at a time: while a slot moves, a server runs no command with several keys (see resp.py).
for _, key in ipairs(KEYS) do redis.call('UNLINK', key) end
return count
