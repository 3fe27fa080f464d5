-- Replaces an item if its version is still ARGV[1], and returns the number of the write, or 0.
-- KEYS: value, meta, counter, index. ARGV: version, key, value, note, nonce.
if version(KEYS[1], KEYS[2]) ~= ARGV[1] then
  return 0
end
local number = redis.call('INCR', KEYS[3])
redis.call('SET', KEYS[1], ARGV[3])
redis.call('HSET', KEYS[2], 'number', number, 'nonce', ARGV[5], 'note', ARGV[4])
redis.call('ZADD', KEYS[4], 0, ARGV[2])
return number
