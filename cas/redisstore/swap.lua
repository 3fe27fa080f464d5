-- Replaces an item if its version is still ARGV[1], and returns the number of the write, or 0.
-- KEYS: value, meta, counter, index. ARGV: version, key, value, note, nonce.
local written = redis.call('HMGET', KEYS[2], 'number', 'nonce')
local ours = written[1] and written[1] .. '.' .. written[2] == ARGV[1]
if not ours and version(KEYS[1], KEYS[2]) ~= ARGV[1] then
  return 0
end
local number = redis.call('INCR', KEYS[3])
if ours then -- which the index has
  if not redis.call('SET', KEYS[1], ARGV[3], 'XX') then
    return 0
  end
else
  redis.call('SET', KEYS[1], ARGV[3])
  redis.call('ZADD', KEYS[4], 0, ARGV[2])
end
redis.call('HSET', KEYS[2], 'number', number, 'nonce', ARGV[5], 'note', ARGV[4])
return number
