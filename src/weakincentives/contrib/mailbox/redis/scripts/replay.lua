#!lua
-- Add a message that is replayed, and have the reply to it wait for it.
--
-- KEYS  1 pending     as in put.lua
--       2 data
--       3 delayed
--       4 wake
--       5 sent
--       6 entry       as in reply.lua
--       7 bell
--       8 expiry
--       9 parts
-- ARGV  1 max_size    as in put.lua
--       2 replicated
--       3 details
--       then the id and the payload of the message, and all arguments of reply.lua
--
-- Returns what put.lua returns; unless the message was added, the reply stays as it was.

local function put(KEYS, ARGV)
  -- include put.lua
end

local function change_reply(KEYS, ARGV)
  -- include reply.lua
end

local added = put({ unpack(KEYS, 1, 5) }, { unpack(ARGV, 1, 5) })
if added == 1 then change_reply({ unpack(KEYS, 6) }, { unpack(ARGV, 6) }) end
return added
