-- The short way to the most common decision: each request takes a cost from one level, now or not at all.
--
-- KEYS        the key of each request, or none of them, and then they are the last in ARGV
-- ARGV[1]     the moment (negative: the server's), and for each request the place of its quota and its cost
-- ARGV[2..]   quotas: tag, price, drain, capacity
--
-- What level.lua decides, without patience or credit, and without a function or a table where one can be spared: for a
-- lone request that is most of the time. The answer is a verb, a level and an excess for each request. A state that is
-- not as usual (reset, or written by another quota, or not ours) is left to the harness: the verb is then UNUSUAL.

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
local out = {}
for index = 1, count do
  local place, cost
  place, cost, at = read('>BI7', costs, at)
  if place ~= last then
    last = place
    tag, price, drain, capacity = read('>I2ddd', ARGV[place])
    size = 10
    if drain > 1 then size = 12 end
    if drain > 65536 then size = 17 end
  end
  local name = KEYS[index] or ARGV[first + index]
  local value = call('GET', name)

  -- The level before, from the moment at which it is zero.
  local level, is_usual = 0, true
  if value then
    is_usual = false
    if #value == size then
      local generation, writer, zero, next = read('>BI2I7', value)
      if generation == 0 and writer == tag then
        is_usual = true
        local ahead, short = zero - now, 0
        if ahead > 0 then
          if size == 12 then short = read('>I2', value, next) elseif size == 17 then short = read('>I7', value, next) end
          level = (ahead - 1) * drain + (drain - short)
        end
      end
    end
  end

  local verb, excess = UNUSUAL, 0
  if is_usual then
    local units = cost * price
    local after = level + units
    if after <= capacity then
      verb, level = ALLOW, after
      local rest = 0
      if drain > 1 then rest = math.fmod(after, drain) end
      local zero = now + (after - rest) / drain
      if rest > 0 then zero, rest = zero + 1, drain - rest end
      if size == 10 then
        value = pack('>BI2I7', 0, tag, zero)
      elseif size == 12 then
        value = pack('>BI2I7I2', 0, tag, zero, rest)
      else
        value = pack('>BI2I7I7', 0, tag, zero, rest)
      end
      local written = call('PSETEX', name, floor((zero - now) / 1000) + longer, value)
      if written.err then return redis.error_reply(written.err) end
    elseif cost > 1 and units > capacity then
      verb = NEVER
    else
      verb, excess = DENY, after - capacity
    end
  end
  local o = 3 * index
  out[o - 2], out[o - 1], out[o] = verb, level, excess
end
return cmsgpack.pack(out)
