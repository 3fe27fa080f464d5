-- Returns version, value, note and number of each item, nothing for an item that does not exist, or
-- the type of what is there if it is not a string.
-- KEYS: value, meta of each.
local items = {}
for i = 1, #KEYS, 2 do
  local kind, item = redis.call('TYPE', KEYS[i]).ok, {}
  if kind == 'string' then
    local meta = redis.call('HMGET', KEYS[i + 1], 'note', 'number')
    item = {version(KEYS[i], KEYS[i + 1]), redis.call('GET', KEYS[i]), meta[1] or '', meta[2] or '0'}
  elseif kind ~= 'none' then
    item = {kind}
  end
  items[#items + 1] = item
end
return items
