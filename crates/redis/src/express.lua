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
--
-- Requests that ask the same key one after the other are decided one after the other, at one moment, so the levels stay at
-- hand between them: such a key is read once and written once.

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
-- The numbers of the last quota, and of all where requests have several.
local last, tag, price, drain, capacity, size
local tags, prices, drains, capacities, sizes
-- The key that was asked last: its levels, and what is known of how it is stored.
local held, held_place, held_many, held_start, is_stored, is_changed, before
local levels = {}
local out, o = {}, 0
for index = 1, count + 1 do
  local name
  if index <= count then
    if not all_the_same then place, many, cost, at = read('>BBI6', costs, at) end
    name = KEYS[index] or ARGV[first + index]
  end

  if held and (name ~= held or place ~= held_place) then
    if is_changed then
      -- Numbers are read as below; a function would cost more than it spares.
      local text, after = '\0', now
      for quota = held_place, held_place + held_many - 1 do
        if quota ~= last then
          last = quota
          if drains and drains[quota] then
            tag, drain, size = tags[quota], drains[quota], sizes[quota]
            price, capacity = prices[quota], capacities[quota]
          else
            tag, price, drain, capacity = read('>I2ddd', ARGV[quota])
            size = 9
            if drain > 1 then size = 11 end
            if drain > 65536 then size = 16 end
          end
        end
        local level = levels[quota - held_place + 1]
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
      if is_stored and span == floor(before / SPAN) then
        -- It stays for as long as it was to stay, and it is as long as it was.
        written = call('SETRANGE', held, '0', text)
      else
        local ttl = ttls[span]
        if not ttl then
          ttl = (span + 2) * SPAN / 1000 - floor(now / 1000)
          if injected then ttl = ttl + 3600000 end
          ttl = string.format('%.0f', ttl)
          ttls[span] = ttl
        end
        written = call('PSETEX', held, ttl, text)
      end
      if type(written) == 'table' and written.err then
        if not written.err:find('OOM', 1, true) then return redis.error_reply(written.err) end
        -- The harness says what is wrong with it; other keys are answered.
        for p = held_start + 2, o, 2 do out[p] = UNUSUAL end
      end
    end
    held = nil
  end

  if name then
    local is_usual, granted, is_known = true, true, held ~= nil
    local value, position = nil, 2
    if not is_known then
      value = call('GET', name)
      before = 0
      if value and (type(value) ~= 'string' or value:byte(1) ~= 0) then is_usual = false end
    end

    local start = o
    for quota = place, place + many - 1 do
      if quota ~= last then
        last = quota
        if drains and drains[quota] then
          tag, drain, size = tags[quota], drains[quota], sizes[quota]
          price, capacity = prices[quota], capacities[quota]
        else
          tag, price, drain, capacity = read('>I2ddd', ARGV[quota])
          size = 9
          if drain > 1 then size = 11 end
          if drain > 65536 then size = 16 end
          if many > 1 then
            if not drains then tags, prices, drains, capacities, sizes = {}, {}, {}, {}, {} end
            tags[quota], prices[quota], drains[quota] = tag, price, drain
            capacities[quota], sizes[quota] = capacity, size
          end
        end
      end

      -- The level before, from the moment at which it is zero.
      local level = 0
      if is_known then
        level = levels[quota - place + 1]
      elseif value and is_usual then
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
    else
      if not is_known then
        held, held_place, held_many, is_stored, is_changed = name, place, many, value, false
        held_start = start
        for p = 1, many do levels[p] = out[start + p * 2 - 1] end
      end
      if granted then
        -- All of them fit: charge all.
        is_changed = true
        for p = 1, many do
          local each = price
          if many > 1 then each = prices[place + p - 1] end
          local level = levels[p] + cost * each
          levels[p] = level
          out[start + p * 2 - 1] = level
        end
      end
    end
  end
end
return cmsgpack.pack(out)
