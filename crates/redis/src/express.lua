-- The short way to the most common decision: each request takes a cost from the levels of one key, now or not at all.
--
-- KEYS        the key of each request, or none of them, and then they are the last in ARGV
-- ARGV[1]     the moment (negative: the server's), the count of requests, and for each of them the place of its first
--             quota among the arguments, how many quotas it has, and its cost; once, if that is the same for all
-- ARGV[2..]   quotas: tag, price, drain, capacity
--
-- What level.lua decides, without patience or credit, and without a function or a table where one can be spared: for a
-- lone request that is most of the time. The answer is a level and an excess for each quota of each request. A state
-- that is not as usual (reset, or written by another quota, or not ours) is left to the harness.

local NEVER, UNUSUAL = -1, -2
local read, pack, call, floor = struct.unpack, struct.pack, redis.pcall, math.floor

local costs = ARGV[1]
local now, count, at = read('>dI4', costs)
local injected = now >= 0
if not injected then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local place, many, cost
local all_the_same = #costs == 20
if all_the_same then place, many, cost = read('>BBI6', costs, at) end
local first = #ARGV - count
local ttls = {}
local last, tag, price, drain, capacity, size
local out, o = {}, 0
for index = 1, count do
  if not all_the_same then place, many, cost, at = read('>BBI6', costs, at) end
  local name = KEYS[index] or ARGV[first + index]
  local value = call('GET', name)
  local is_usual, granted = true, true
  local start, position = o, 2
  local before, after = 0, now
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
      if zero > before then before = zero end
    end

    -- Not the sum less the capacity: a sum of two large levels is not exact.
    local units = cost * price
    local excess = level - (capacity - units)
    o = o + 2
    out[o - 1] = level
    if excess <= 0 then
      out[o] = 0
    else
      granted = false
      if cost > 1 and units > capacity then excess = NEVER end
      out[o] = excess
    end
  end

  if value and is_usual and position ~= #value + 1 then is_usual = false end
  if not is_usual then
    for p = start + 2, o, 2 do out[p] = UNUSUAL end
  elseif granted then
    -- All of them fit: charge all. Their numbers are read as above; a function would cost more than it spares.
    local text = '\0'
    local p = start + 1
    for quota = place, place + many - 1 do
      if quota ~= last then
        last = quota
        tag, price, drain, capacity = read('>I2ddd', ARGV[quota])
        size = 9
        if drain > 1 then size = 11 end
        if drain > 65536 then size = 16 end
      end
      local level = out[p] + cost * price
      out[p] = level
      p = p + 2
      local zero, rest = now + level, 0
      if drain > 1 then
        rest = math.fmod(level, drain)
        zero = now + (level - rest) / drain
        if rest > 0 then zero, rest = zero + 1, drain - rest end
      end
      if zero > after then after = zero end
      if size == 9 then
        text = text .. pack('>I2I7', tag, zero)
      elseif size == 11 then
        text = text .. pack('>I2I7I2', tag, zero, rest)
      else
        text = text .. pack('>I2I7I7', tag, zero, rest)
      end
    end
    local span, written = floor(after / SPAN), nil
    if value and span == floor(before / SPAN) then
      -- It stays for as long as it was to stay, and it is as long as it was.
      written = call('SETRANGE', name, '0', text)
    else
      local ttl = ttls[span]
      if not ttl then
        ttl = (span + 2) * SPAN / 1000 - floor(now / 1000)
        if injected then ttl = ttl + 3600000 end
        ttl = string.format('%.0f', ttl)
        ttls[span] = ttl
      end
      written = call('PSETEX', name, ttl, text)
    end
    if type(written) == 'table' and written.err then return redis.error_reply(written.err) end
  end
end
return cmsgpack.pack(out)
