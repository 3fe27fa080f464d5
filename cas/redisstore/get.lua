-- Returns version, value, note and number of an item, or nothing.
-- KEYS: value, meta.
local now = version(KEYS[1], KEYS[2])
if now == '' then
  return {}
end
local meta = redis.call('HMGET', KEYS[2], 'note', 'number')
return {now, redis.call('GET', KEYS[1]), meta[1] or '', meta[2] or '0'}
