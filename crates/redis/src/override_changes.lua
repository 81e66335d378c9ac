-- Returns the changes after one: whether they start again, the last number of this part, the last number of all, lines.
-- KEYS: lines (id to JSON), changes (id by number), counters. ARGV: number, the maximum number of lines, '1' for the first part.
local lines, changes, counters = KEYS[1], KEYS[2], KEYS[3]
local after, limit, is_first = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local latest = tonumber(redis.call('HGET', counters, 'last') or 0)
local floor = tonumber(redis.call('HGET', counters, 'floor') or 0)
local reset = '0'
if after > latest or (is_first and after > 0 and after < floor) then
  reset = '1'
  after = 0
end
local ids = redis.call('ZRANGEBYSCORE', changes, '(' .. string.format('%.0f', after), '+inf', 'LIMIT', 0, limit)
local last = latest
if #ids == limit then last = tonumber(redis.call('ZSCORE', changes, ids[#ids])) end
local reply = { reset, string.format('%.0f', last), string.format('%.0f', latest) }
if #ids > 0 then
  for _, line in ipairs(redis.call('HMGET', lines, unpack(ids))) do reply[#reply + 1] = line or '' end
end
return reply
