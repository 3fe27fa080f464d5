-- Returns version, value, note and number of each item, or nothing for an item that does not exist.
-- KEYS: value, meta of each.
local items = {}
for i = 1, #KEYS, 2 do
  local now, item = version(KEYS[i], KEYS[i + 1]), {}
  if now ~= '' then
    local meta = redis.call('HMGET', KEYS[i + 1], 'note', 'number')
    item = {now, redis.call('GET', KEYS[i]), meta[1] or '', meta[2] or '0'}
  end
  items[#items + 1] = item
end
return items
