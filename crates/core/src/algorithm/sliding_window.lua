-- Sliding window: the port of sliding_window.rs.
--
-- State: the time of the newest admission plus one (zero: unused key), the count of the window before its own, and
-- the count of its own. Parameters: limit, length, tick.

local sliding_window = {}

local function window_view(quota, state, now)
  local newest = saturating_sub(state[1], 1)
  local at = max(now, newest)
  local index = div(at, quota[2])
  local ago = index - div(newest, quota[2])
  local start = index * quota[2]
  if ago == 0 then return at, start, state[2], state[3] end
  if ago == 1 then return at, start, state[3], 0 end
  return at, start, 0, 0
end

local function fade_time(quota, previous, room)
  if previous == 0 then return 0 end
  local ticks = quota[2] / quota[3]
  return saturating_sub(ticks, div(room * ticks, previous)) * quota[3]
end

function sliding_window.new() return { 0, 0, 0 } end

function sliding_window.load(quota, text, at)
  local newest, previous, count, next = unpack_from('>I7I7I7', text, at)
  return { newest, previous, count }, next
end

function sliding_window.save(quota, state) return pack('>I7I7I7', state[1], state[2], state[3]) end

function sliding_window.earliest_admission(quota, state, now, cost)
  local at, start, previous, count = window_view(quota, state, now)
  local room = quota[1] - (count + cost)
  if room >= 0 then return max(at, saturating_add(start, fade_time(quota, previous, room))) end
  return saturating_add(start, quota[2] + fade_time(quota, count, quota[1] - cost))
end

function sliding_window.record(quota, state, at, cost)
  local newest, _, previous, count = window_view(quota, state, at)
  state[1], state[2], state[3] = newest + 1, previous, count + cost
end

function sliding_window.remaining(quota, state, now)
  local at, start, previous, count = window_view(quota, state, now)
  if at > now then return 0 end
  local ticks = quota[2] / quota[3]
  local left = ticks - div(now - start, quota[3])
  local faded = previous * left
  if faded <= LARGEST_EXACT then faded = div_ceil(faded, ticks) else faded = mul_div_ceil(previous, left, ticks) end
  return saturating_sub(quota[1], count + faded)
end

function sliding_window.reset_at(quota, state)
  local at, start, previous, count = window_view(quota, state, 0)
  if count > 0 then return saturating_add(start, 2 * quota[2]) end
  if previous > 0 then return saturating_add(start, quota[2]) end
  return at
end

function sliding_window.decide(quota, state, now, cost, max_wait, overdraft, peek)
  return decide_window(sliding_window, quota, state, now, cost, max_wait, overdraft, peek)
end

function sliding_window.refund_functions()
  local function refund(quota, state, now, cost, receipt)
    if state[1] == 0 then return end
    local ago = div(state[1] - 1, quota[2]) - div(receipt.at, quota[2])
    if ago == 0 then state[3] = saturating_sub(state[3], cost) end
    if ago == 1 then state[2] = saturating_sub(state[2], cost) end
  end

  return refund
end

function sliding_window.shares_state(quota, other) return quota[2] == other[2] end
