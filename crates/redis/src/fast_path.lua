-- The fast path for the most common decision: each request charges bucket quotas of one key, without waiting or overdraft.
--
-- KEYS        the key of each request; or empty, and the keys are the last arguments
-- ARGV[1]     time (negative: the server's), number of requests, and for each request the argument index of its first
--             quota, its number of quotas and its cost; only once if all requests have the same
-- ARGV[2..]   quotas: tag, units per token, units per microsecond, capacity
--
-- Decides like level.lua, but avoids functions and tables, whose cost dominates a single request. The reply is a level and
-- an excess for each quota of each request. FALLBACK leaves a state that was reset, or written by another quota or another
-- program, to decide.lua.
--
-- Consecutive requests for the same key share its levels: the key is read once and written once.

local NEVER, FALLBACK = -1, -2
local read, pack, call, floor = struct.unpack, struct.pack, redis.pcall, math.floor

local requests = ARGV[1]
local now, count, at = read('>dI4', requests)
local is_time_given = now >= 0
if not is_time_given then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local first_quota, quota_count, cost
local is_uniform = #requests == 20
if is_uniform then first_quota, quota_count, cost = read('>BBI6', requests, at) end
local first = #ARGV - count
local ttls = {}
-- The numbers of the last quota, and of all quotas if requests have several.
local last, tag, units_per_token, units_per_us, capacity, size
local tags, all_units_per_token, all_units_per_us, capacities, sizes
-- The current key: its levels and its stored form.
local current_key, current_first, current_quota_count, current_start, is_stored, is_changed, stored_zero
local levels = {}
local out, o = {}, 0
for index = 1, count + 1 do
  local name
  if index <= count then
    if not is_uniform then first_quota, quota_count, cost, at = read('>BBI6', requests, at) end
    name = KEYS[index] or ARGV[first + index]
  end

  if current_key and (name ~= current_key or first_quota ~= current_first) then
    if is_changed then
      -- Reads the numbers as below; inlined, because a function call costs more than it saves.
      local text, latest_zero = '\0', now
      for quota = current_first, current_first + current_quota_count - 1 do
        if quota ~= last then
          last = quota
          if all_units_per_us and all_units_per_us[quota] then
            tag, units_per_us, size = tags[quota], all_units_per_us[quota], sizes[quota]
            units_per_token, capacity = all_units_per_token[quota], capacities[quota]
          else
            tag, units_per_token, units_per_us, capacity = read('>I2ddd', ARGV[quota])
            size = 9
            if units_per_us > 1 then size = 11 end
            if units_per_us > 65536 then size = 16 end
          end
        end
        local level = levels[quota - current_first + 1]
        local zero, rest = now + level, 0
        if units_per_us > 1 then
          rest = math.fmod(level, units_per_us)
          zero = now + (level - rest) / units_per_us
          if rest > 0 then zero, rest = zero + 1, units_per_us - rest end
        end
        if zero > latest_zero then latest_zero = zero end
        if size == 9 then
          text = text .. pack('>I2I7', tag, zero)
        elseif size == 11 then
          text = text .. pack('>I2I7I2', tag, zero, rest)
        else
          text = text .. pack('>I2I7I7', tag, zero, rest)
        end
      end
      local step, written = floor(latest_zero / TTL_STEP), nil
      if is_stored and step == floor(stored_zero / TTL_STEP) then
        -- Same TTL step and same length: SETRANGE keeps the TTL and is cheaper than PSETEX.
        written = call('SETRANGE', current_key, '0', text)
      else
        local ttl = ttls[step]
        if not ttl then
          ttl = (step + 2) * TTL_STEP / 1000 - floor(now / 1000)
          if is_time_given then ttl = ttl + 3600000 end
          ttl = string.format('%.0f', ttl)
          ttls[step] = ttl
        end
        written = call('PSETEX', current_key, ttl, text)
      end
      if type(written) == 'table' and written.err then
        if not written.err:find('OOM', 1, true) then return redis.error_reply(written.err) end
        -- decide.lua returns the error for this key; the other keys keep their replies.
        for p = current_start + 2, o, 2 do out[p] = FALLBACK end
      end
    end
    current_key = nil
  end

  if name then
    local is_supported, granted, is_cached = true, true, current_key ~= nil
    local value, position = nil, 2
    if not is_cached then
      value = call('GET', name)
      stored_zero = 0
      if value and (type(value) ~= 'string' or value:byte(1) ~= 0) then is_supported = false end
    end

    local start = o
    for quota = first_quota, first_quota + quota_count - 1 do
      if quota ~= last then
        last = quota
        if all_units_per_us and all_units_per_us[quota] then
          tag, units_per_us, size = tags[quota], all_units_per_us[quota], sizes[quota]
          units_per_token, capacity = all_units_per_token[quota], capacities[quota]
        else
          tag, units_per_token, units_per_us, capacity = read('>I2ddd', ARGV[quota])
          size = 9
          if units_per_us > 1 then size = 11 end
          if units_per_us > 65536 then size = 16 end
          if quota_count > 1 then
            if not all_units_per_us then tags, all_units_per_token, all_units_per_us, capacities, sizes = {}, {}, {}, {}, {} end
            tags[quota], all_units_per_token[quota], all_units_per_us[quota] = tag, units_per_token, units_per_us
            capacities[quota], sizes[quota] = capacity, size
          end
        end
      end

      -- The level before the charge, computed from the time at which it is zero.
      local level = 0
      if is_cached then
        level = levels[quota - first_quota + 1]
      elseif value and is_supported then
        local writer, zero, remainder = nil, 0, 0
        if #value >= position + size - 1 then
          writer, zero, position = read('>I2I7', value, position)
          if size == 11 then remainder, position = read('>I2', value, position) end
          if size == 16 then remainder, position = read('>I7', value, position) end
        end
        is_supported = writer == tag
        if is_supported and zero > now then level = (zero - now - 1) * units_per_us + (units_per_us - remainder) end
        if zero > stored_zero then stored_zero = zero end
      end

      -- Not (level + units) - capacity: the sum of two large numbers is not exact.
      local units = cost * units_per_token
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

    if value and is_supported and position ~= #value + 1 then is_supported = false end
    if not is_supported then
      for p = start + 2, o, 2 do out[p] = FALLBACK end
    else
      if not is_cached then
        current_key, current_first, current_quota_count, is_stored, is_changed = name, first_quota, quota_count, value, false
        current_start = start
        for p = 1, quota_count do levels[p] = out[start + p * 2 - 1] end
      end
      if granted then
        -- All quotas allow: charge all.
        is_changed = true
        for p = 1, quota_count do
          local token_units = units_per_token
          if quota_count > 1 then token_units = all_units_per_token[first_quota + p - 1] end
          local level = levels[p] + cost * token_units
          levels[p] = level
          out[start + p * 2 - 1] = level
        end
      end
    end
  end
end
return cmsgpack.pack(out)
