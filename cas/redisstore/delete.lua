-- Removes an item if its version is still ARGV[1], and returns 1, or 0.
-- KEYS: value, meta, index. ARGV: version, key.
if ARGV[1] == '' or version(KEYS[1], KEYS[2]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[2])
return 1
