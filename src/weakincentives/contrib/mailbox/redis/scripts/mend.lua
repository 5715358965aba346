#!lua flags=allow-oom
-- Rename keys that are not of the type that they should be; nobody can use them as they are.
--
-- KEYS  the keys, then as many new names
-- ARGV  for each key its type
--
-- Returns the new names that were given. What had such a name before is gone.

local renamed = {}
for i, wanted in ipairs(ARGV) do
  local found = redis.call('TYPE', KEYS[i]).ok
  if found ~= 'none' and found ~= wanted then
    redis.call('RENAME', KEYS[i], KEYS[#ARGV + i])
    renamed[#renamed + 1] = KEYS[#ARGV + i]
  end
end
return renamed
