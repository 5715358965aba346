#!lua flags=allow-oom
-- Put a message off, and have the reply to it expire that much later.
--
-- KEYS  1 pending    as in settle.lua
--       2 invisible
--       3 data
--       4 delayed
--       5 wake
--       6 entry      as in reply.lua
--       7 bell
--       8 expiry
--       9 parts
-- ARGV  1 step       "put_off", as in settle.lua
--       2 after
--       3 repeated
--       then the handle, and all arguments of reply.lua
--
-- Returns what settle.lua returns; if that is a refusal, the reply stays as it was.

local function settle(KEYS, ARGV)
  -- include settle.lua
end

local function change_reply(KEYS, ARGV)
  -- include reply.lua
end

local answer = settle({ unpack(KEYS, 1, 5) }, { unpack(ARGV, 1, 4) })
if answer == '1' then change_reply({ unpack(KEYS, 6) }, { unpack(ARGV, 5) }) end
return answer
