-- The short way to the most common decision: each request takes a cost from the levels of one key, now or not at all.
--
-- KEYS        the key of each request, or none of them, and then they are the last in ARGV
-- ARGV[1]     the moment (negative: the server's), and for each request the place of its first quota among the arguments,
--             how many quotas it has, and its cost
-- ARGV[2..]   quotas: tag, price, drain, capacity
--
-- What level.lua decides, without patience or credit, and without a function or a table where one can be spared: for a
-- lone request that is most of the time. The answer is a verb, a level and an excess for each quota of each request. A
-- state that is not as usual (reset, or written by another quota, or not ours) is left to the harness: all verbs of the
-- request are then UNUSUAL.

local ALLOW, DENY, NEVER, UNUSUAL = 0, 2, 3, 9
local read, pack, call, floor = struct.unpack, struct.pack, redis.pcall, math.floor

local costs = ARGV[1]
local now, at = read('>d', costs)
local longer = 2
if now < 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  longer = 3600002
end

local count = (#costs - 8) / 8
local first = #ARGV - count
local last, tag, price, drain, capacity, size
local out, o = {}, 0
for index = 1, count do
  local place, many, cost
  place, many, cost, at = read('>BBI6', costs, at)
  local name = KEYS[index] or ARGV[first + index]
  local value = call('GET', name)
  local is_usual, granted = true, true
  local start, position = o, 2
  local until_moment = now
  if value and (type(value) ~= 'string' or value:byte(1) ~= 0) then is_usual = false end

  for quota = place, place + many - 1 do
    if quota ~= last then
      last = quota
      tag, price, drain, capacity = read('>I2ddd', ARGV[quota])
      size = 9
      if drain > 1 then size = 11 end
      if drain > 65536 then size = 16 end
    end

    -- The level before, from the moment at which it is zero.
    local level = 0
    if value and is_usual then
      local writer, zero, short = nil, 0, 0
      if #value >= position + size - 1 then
        writer, zero, position = read('>I2I7', value, position)
        if size == 11 then short, position = read('>I2', value, position) end
        if size == 16 then short, position = read('>I7', value, position) end
      end
      is_usual = writer == tag
      if is_usual and zero > now then level = (zero - now - 1) * drain + (drain - short) end
    end

    -- Not the sum less the capacity: a sum of two large levels is not exact.
    local units = cost * price
    local excess = level - (capacity - units)
    o = o + 3
    if excess <= 0 then
      out[o - 2], out[o - 1], out[o] = ALLOW, level, 0
    else
      granted = false
      if cost > 1 and units > capacity then
        out[o - 2], out[o - 1], out[o] = NEVER, level, 0
      else
        out[o - 2], out[o - 1], out[o] = DENY, level, excess
      end
    end
  end

  if value and is_usual and position ~= #value + 1 then is_usual = false end
  if not is_usual then
    for p = start + 1, o, 3 do
      out[p], out[p + 1], out[p + 2] = UNUSUAL, 0, 0
    end
  elseif granted then
    -- All of them fit: charge all. Their numbers are read as above; a function would cost more than it spares.
    local text = '\0'
    local p = start
    for quota = place, place + many - 1 do
      if quota ~= last then
        last = quota
        tag, price, drain, capacity = read('>I2ddd', ARGV[quota])
        size = 9
        if drain > 1 then size = 11 end
        if drain > 65536 then size = 16 end
      end
      p = p + 3
      local after = out[p - 1] + cost * price
      out[p - 1] = after
      local rest = 0
      if drain > 1 then rest = math.fmod(after, drain) end
      local zero = now + (after - rest) / drain
      if rest > 0 then zero, rest = zero + 1, drain - rest end
      if zero > until_moment then until_moment = zero end
      if size == 9 then
        text = text .. pack('>I2I7', tag, zero)
      elseif size == 11 then
        text = text .. pack('>I2I7I2', tag, zero, rest)
      else
        text = text .. pack('>I2I7I7', tag, zero, rest)
      end
    end
    local written = call('PSETEX', name, floor((until_moment - now) / 1000) + longer, text)
    if written.err then return redis.error_reply(written.err) end
  end
end
return cmsgpack.pack(out)
