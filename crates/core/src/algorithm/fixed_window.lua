-- Fixed window: the port of fixed_window.rs.
--
-- State: the start of the newest window plus one (zero: unused key), and its count.
-- Parameters: limit, length, phase (negative: windows start with the first hit).

local fixed_window = {}

local function offset_in_window(quota, at)
  if quota[3] < 0 then return 0 end
  local past = fmod(at, quota[2]) - quota[3]
  if past < 0 then return past + quota[2] end
  return past
end

local function window_start(quota, at) return saturating_sub(at, offset_in_window(quota, at)) end

local function window_end(quota, start) return saturating_add(start, quota[2] - offset_in_window(quota, start)) end

local function current_window(quota, state, now)
  local start, count = state[1] - 1, state[2]
  if start >= 0 and (now < start or (count > 0 and now < window_end(quota, start))) then return start, count end
  return window_start(quota, now), 0
end

function fixed_window.new() return { 0, 0 } end

function fixed_window.load(quota, text, at)
  local start, count, next = unpack_from('>I7I7', text, at)
  return { start, count }, next
end

function fixed_window.save(quota, state) return pack('>I7I7', state[1], state[2]) end

function fixed_window.earliest_admission(quota, state, now, cost)
  local start, count = current_window(quota, state, now)
  if count + cost <= quota[1] then return max(start, now) end
  return window_end(quota, start)
end

function fixed_window.record(quota, state, at, cost)
  local start, count = current_window(quota, state, at)
  state[1], state[2] = start + 1, count + cost
end

function fixed_window.remaining(quota, state, now)
  local start, count = current_window(quota, state, now)
  if start > now then return 0 end
  return saturating_sub(quota[1], count)
end

function fixed_window.reset_at(quota, state)
  local start = state[1] - 1
  if start < 0 then return 0 end
  if state[2] > 0 then return window_end(quota, start) end
  return start
end

function fixed_window.decide(quota, state, now, cost, max_wait, overdraft, peek)
  return decide_window(fixed_window, quota, state, now, cost, max_wait, overdraft, peek)
end

function fixed_window.refund_functions()
  local function refund(quota, state, now, cost, receipt)
    local start, count = current_window(quota, state, now)
    if state[1] == start + 1 and start <= receipt.at then state[2] = saturating_sub(count, cost) end
  end

  return refund
end

function fixed_window.shares_state(quota, other) return quota[2] == other[2] and quota[3] == other[3] end
