-- version returns the version of the last write. Of a string that this store has not written, it is
-- a hash of the string. Other types are an error, which Redis calls WRONGTYPE.
local function version(value, meta)
  if redis.call('EXISTS', value) == 0 then
    return ''
  end
  local written = redis.call('HMGET', meta, 'number', 'nonce')
  if written[1] then
    return written[1] .. '.' .. written[2]
  end
  return 'sha1.' .. redis.sha1hex(redis.call('GET', value))
end

