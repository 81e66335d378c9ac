-- Strict sliding window: the port of sliding_strict.rs.
--
-- State: the index of the newest part (nil: unused key), and a count for each part that has one.
-- Parameters: limit, the length of a part, parts.

local sliding_strict = {}

local function effective_now(quota, state, now)
  if not state.newest then return now end
  return max(now, state.newest * quota[2])
end

-- The sum of part `index` and the `parts` before it.
local function count_used_parts(quota, state, index)
  local used = 0
  if state.newest then
    for part = max(index - quota[3], 0), min(state.newest, index) do
      used = used + (state[part] or 0)
    end
  end
  return used
end

function sliding_strict.new() return {} end

-- Only the parts from the oldest nonzero count are stored.
function sliding_strict.load(quota, text, at)
  local newest, count, next = unpack_from('>I7I2', text, at)
  local state = { newest = newest }
  for part = newest - count + 1, newest do
    state[part], next = unpack_from('>I7', text, next)
  end
  return state, next
end

function sliding_strict.save(quota, state)
  local newest = state.newest
  if not newest then return pack('>I7I2', 0, 0) end
  local oldest = max(newest - quota[3], 0)
  while oldest < newest and (state[oldest] or 0) == 0 do
    oldest = oldest + 1
  end
  local parts = { pack('>I7I2', newest, newest - oldest + 1) }
  for part = oldest, newest do
    parts[#parts + 1] = pack('>I7', state[part] or 0)
  end
  return table.concat(parts)
end

function sliding_strict.earliest_admission(quota, state, now, cost)
  local at = effective_now(quota, state, now)
  local index = div(at, quota[2])
  local used, ahead = count_used_parts(quota, state, index), 0
  while used + cost > quota[1] do
    used = used - (state[index + ahead - quota[3]] or 0)
    ahead = ahead + 1
  end
  if ahead == 0 then return at end
  return min((index + ahead) * quota[2], LARGEST_EXACT)
end

function sliding_strict.record(quota, state, at, cost)
  local index = div(at, quota[2])
  local newest = state.newest
  if not newest or index > newest then
    for part in pairs(state) do
      if part ~= 'newest' and part < index - quota[3] then state[part] = nil end
    end
    state.newest = index
  end
  state[index] = (state[index] or 0) + cost
end

function sliding_strict.remaining(quota, state, now)
  if effective_now(quota, state, now) > now then return 0 end
  return saturating_sub(quota[1], count_used_parts(quota, state, div(now, quota[2])))
end

function sliding_strict.reset_at(quota, state)
  if not state.newest then return 0 end
  for part = state.newest, max(state.newest - quota[3], 0), -1 do
    if (state[part] or 0) > 0 then return min((part + quota[3] + 1) * quota[2], LARGEST_EXACT) end
  end
  return state.newest * quota[2]
end

function sliding_strict.decide(quota, state, now, cost, max_wait, overdraft, peek)
  return decide_window(sliding_strict, quota, state, now, cost, max_wait, overdraft, peek)
end

function sliding_strict.refund_functions()
  local function refund(quota, state, now, cost, receipt)
    local index = div(receipt.at, quota[2])
    if state.newest and index <= state.newest and index + quota[3] >= state.newest then
      state[index] = saturating_sub(state[index] or 0, cost)
    end
  end

  return refund
end

function sliding_strict.shares_state(quota, other) return quota[2] == other[2] and quota[3] == other[3] end
