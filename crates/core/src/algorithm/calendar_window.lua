-- Calendar window: the port of calendar_window.rs.
--
-- State: the start of the newest window plus one (zero: unused key), its count, and its end.
-- Parameters: limit, a hash of the period and the time zone, and the boundaries of four windows around the time of the client:
-- the previous one, the current one and the next two.

local calendar_window = {}

local FIRST_BOUNDARY, LAST_BOUNDARY = 3, 7

-- The index of the boundary that starts the window of a time.
local function window_index(quota, at)
  local index = FIRST_BOUNDARY
  while index + 1 < LAST_BOUNDARY and quota[index + 1] <= at do index = index + 1 end
  return index
end

local function window_at(quota, at)
  local index = window_index(quota, at)
  return quota[index], quota[index + 1]
end

local function current_window(quota, state, now)
  local start, count = state[1] - 1, state[2]
  if start >= 0 and (now < start or (count > 0 and now < state[3])) then return start, state[3], count end
  local from, to = window_at(quota, now)
  return from, to, 0
end

-- Why a time cannot be decided, if the window of it or the next one is unknown.
function calendar_window.time_error(quota, now)
  if now >= quota[FIRST_BOUNDARY] and now < quota[LAST_BOUNDARY - 1] then return nil end
  return string.format(
    'the time of the server (%.0f) is outside of the calendar windows that the client knows (%.0f to %.0f, in seconds since 1970); '
      .. 'synchronize the clocks of both machines',
    div(now, 1000000), div(quota[FIRST_BOUNDARY], 1000000), div(quota[LAST_BOUNDARY - 1], 1000000))
end

function calendar_window.new() return { 0, 0, 0 } end

function calendar_window.load(quota, text, at)
  local start, count, to, next = unpack_from('>I7I7I7', text, at)
  return { start, count, to }, next
end

function calendar_window.save(quota, state) return pack('>I7I7I7', state[1], state[2], state[3]) end

function calendar_window.reset_at(quota, state)
  if state[1] == 0 then return 0 end
  if state[2] > 0 then return state[3] end
  return state[1] - 1
end

function calendar_window.decide(quota, state, now, cost, max_wait, overdraft, peek)
  local limit, is_forced = quota[1], overdraft == OVERDRAFT_FORCE
  local code, wait, charged, at = NEVER, 0, nil, now
  if cost <= limit or is_forced then
    local from, to, count = current_window(quota, state, now)
    local fits = is_forced or count + cost <= limit
    if fits then at = max(from, now) else at = to end
    wait = saturating_sub(at, now)
    if wait == 0 then
      code = ALLOW
    elseif is_forced or (wait <= max_wait and at < quota[window_index(quota, now) + 2]) then
      code = DELAY
    else
      code = DENY
    end
    if code <= DELAY and not peek and cost > 0 then
      if not fits then
        from, to = window_at(quota, at)
        count = 0
      end
      local after = min(count + cost, LARGEST_EXACT)
      state[1], state[2], state[3] = from + 1, after, to
      charged = after - count
    end
  end
  local from, _, count = current_window(quota, state, now)
  local remaining = 0
  if from <= now then remaining = saturating_sub(limit, count) end
  local reset = saturating_sub(calendar_window.reset_at(quota, state), now)
  if charged then return code, remaining, reset, wait, charged, at, 0, 0 end
  return code, remaining, reset, wait
end

function calendar_window.refund_functions()
  local function refund(quota, state, now, cost, receipt)
    local from, _, count = current_window(quota, state, now)
    if state[1] == from + 1 and from <= receipt.at then state[2] = saturating_sub(count, cost) end
  end

  return refund
end

function calendar_window.shares_state(quota, other) return quota[2] == other[2] end
