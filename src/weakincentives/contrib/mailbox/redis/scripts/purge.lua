#!lua flags=allow-oom
-- Remove every message, leased and delayed ones too; handles die with their leases.
--
-- KEYS  1 pending    LIST  records that wait (see put.lua)
--       2 invisible  ZSET  leases (see lease.lua)
--       3 data       HASH  id -> payload
--       4 delayed    ZSET  record -> when it becomes visible
--       5 wake       ZSET  one token, there while somebody should look into pending
--
-- Returns how many messages there were.

local held = redis.call('HLEN', KEYS[3])
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5])
return held
