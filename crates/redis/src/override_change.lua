-- Sets or removes an override, if its last change is the expected one.
-- KEYS: lines (id to JSON), changes (id by number), ends (id by time), history, counters.
-- ARGV: id, the expected number or '', members, end or '', now, the maximum number of overrides.
-- A removal stays for an hour as a line without a quota, so that every process finds it.
local lines, changes, ends, history, counters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, expected, members, till, now, max = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local REMOVAL_RETENTION, MAX_HISTORY, MAX_PURGED = 3600000000, 100, 100

local function is_removal(line)
  -- Quotes in values are escaped.
  return string.find(line, '"quota":null', 1, true) ~= nil
end

-- Purge what has ended. A process that lacks a purged removal must start again.
for _, ended in ipairs(redis.call('ZRANGEBYSCORE', ends, '-inf', now, 'LIMIT', 0, MAX_PURGED)) do
  local line = redis.call('HGET', lines, ended)
  if line and is_removal(line) then
    local change = tonumber(redis.call('ZSCORE', changes, ended) or 0)
    local floor = tonumber(redis.call('HGET', counters, 'floor') or 0)
    redis.call('HSET', counters, 'floor', string.format('%.0f', math.max(floor, change)))
  end
  redis.call('HDEL', lines, ended)
  redis.call('ZREM', changes, ended)
  redis.call('ZREM', ends, ended)
end

local line = redis.call('HGET', lines, id)
local is_set = line and not is_removal(line) and tonumber(redis.call('ZSCORE', ends, id) or 0) > tonumber(now)
local change = is_set and tonumber(redis.call('ZSCORE', changes, id)) or 0
if expected ~= '' and tonumber(expected) ~= change then return { 'conflict', line or '' } end
if till == '' and not is_set then return { 'absent' } end
if till ~= '' and not is_set and redis.call('HLEN', lines) >= tonumber(max) then return { 'full' } end

local number = string.format('%.0f', redis.call('HINCRBY', counters, 'last', 1))
local text = '{"change":' .. number .. ',' .. members
if till == '' then till = string.format('%.0f', tonumber(now) + REMOVAL_RETENTION) end
redis.call('HSET', lines, id, text)
redis.call('ZADD', changes, number, id)
redis.call('ZADD', ends, till, id)
redis.call('LPUSH', history, text)
redis.call('LTRIM', history, 0, MAX_HISTORY - 1)
return { 'changed', number }
