#!lua flags=allow-oom
-- Acknowledge, settle the replies to what was acknowledged, and lease.
--
-- KEYS  1 pending     as in lease.lua
--       2 invisible
--       3 data
--       4 delayed
--       5 wake
--       6 unreadable
--       7 paused
--       then for each answer: entry, bell, expiry and parts, as in reply.lua
-- ARGV  1 most        as in lease.lua
--       2 lasts
--       3 promotes
--       4 woken
--       5 keeps
--       6 repeated
--       7 handles
--       8 token
--       then the handles, as in lease.lua
--       then for each answer: which of the handles it answers, and the first five arguments of
--       reply.lua
--
-- Returns what lease.lua returns. What a repeated call finds gone was answered by the first try.

local LEASE_KEYS, REPLY_KEYS, REPLY_ARGUMENTS = 7, 4, 5
local answers = (#KEYS - LEASE_KEYS) / REPLY_KEYS
local last = #ARGV - answers * (1 + REPLY_ARGUMENTS)

local function acknowledge_and_lease(KEYS, ARGV)
  -- include lease.lua
end

local function change_reply(KEYS, ARGV)
  -- include reply.lua
end

local keys = { unpack(KEYS, 1, LEASE_KEYS) }

function keys.acknowledged(acknowledged)
  for n = 0, answers - 1 do
    local key, at = LEASE_KEYS + n * REPLY_KEYS, last + n * (1 + REPLY_ARGUMENTS)
    local handle = tonumber(ARGV[at + 1])
    if string.sub(acknowledged, handle, handle) == '1' then
      -- If another program has overwritten a reply, that must not keep the others from their
      -- callers, nor the leases from this one.
      pcall(change_reply, { unpack(KEYS, key + 1, key + REPLY_KEYS) },
        { unpack(ARGV, at + 2, at + 1 + REPLY_ARGUMENTS) })
    end
  end
end

return acknowledge_and_lease(keys, { unpack(ARGV, 1, last) })
