-- A level that rises with cost and drains with time: the port of level.rs.
--
-- State: the time at which the level reaches zero, rounded up to a microsecond, and the units by which it is below
-- zero at that time. Parameters: units per token, units per microsecond, capacity, queue, the level of a new key, and how long a
-- key is stored after it has drained, if that level is above zero.

local level = {}

-- The highest level: 71 years of drain, or the length of the queue.
local function max_level(quota)
  return max(quota[4], min(quota[2] * 2251799813685248, LARGEST_EXACT))
end

-- The time from which a state is equivalent to that of a new key.
function level.reset_at(quota, state)
  if quota[5] == 0 or state[1] == 0 then return state[1] end
  return saturating_add(state[1], quota[6] + 1)
end

local function is_new(quota, state, now) return level.reset_at(quota, state) <= now end

local function level_at(quota, state, now)
  if quota[5] > 0 and is_new(quota, state, now) then return quota[5] end
  local ahead = state[1] - now
  if ahead <= 0 then return 0 end
  return (ahead - 1) * quota[2] + (quota[2] - state[2])
end

local function write_level(quota, state, now, units)
  local rest = fmod(units, quota[2])
  state[1] = now + (units - rest) / quota[2]
  state[2] = 0
  if rest > 0 then
    state[1] = state[1] + 1
    state[2] = quota[2] - rest
  end
end

-- Packs in as few bytes as the drain needs.
local function layout(quota)
  if quota[2] == 1 then return '>I7' end
  if quota[2] <= 65536 then return '>I7I2' end
  return '>I7I7'
end

function level.load(quota, text, at)
  if quota[2] == 1 then
    local zero, next = unpack_from('>I7', text, at)
    return { zero, 0 }, next
  end
  local zero, short, next = unpack_from(layout(quota), text, at)
  return { zero, short }, next
end

function level.new() return { 0, 0 } end

function level.save(quota, state)
  if quota[2] == 1 then return pack('>I7', state[1]) end
  return pack(layout(quota), state[1], state[2])
end

-- Starts the refill of a new key that does not start at level zero; returns its state.
function level.begin(quota, writer, state, now)
  if quota[5] == 0 or (state and not is_new(writer, state, now)) then return nil end
  local started = { 0, 0 }
  write_level(quota, started, now, quota[5])
  return started
end

function level.decide(quota, state, now, cost, max_wait, overdraft, peek)
  local units_per_token, units_per_us, capacity = quota[1], quota[2], quota[3]
  local before = level_at(quota, state, now)
  local units = cost * units_per_token
  local after = before + units
  -- Not `after - capacity`: the sum of two large levels is not exact.
  local excess = before - (capacity - units)
  if cost > 1 and units > capacity then
    if overdraft == OVERDRAFT_DENY or (overdraft == OVERDRAFT_GRANT and units > max_level(quota) - before) then return NEVER, before, 0, 0 end
    excess = before
  end
  local code = ALLOW
  if excess > 0 then
    if overdraft ~= OVERDRAFT_FORCE then
      if max_wait == 0 or excess > units_per_us * max_wait then return DENY, before, excess, 0 end
      local over = excess - (quota[4] - capacity)
      if over > 0 then return DENY, before, over, 0 end
    end
    code = DELAY
  else
    excess = 0
  end
  if peek or cost == 0 then return code, before, excess, 0 end
  if after > LARGEST_EXACT or after > max_level(quota) then
    after = max_level(quota)
    cost = div(saturating_sub(after, before), units_per_token)
  end
  write_level(quota, state, now, after)
  return code, after, excess, 0, cost, now, after, 0
end

-- The number of tokens left at a level.
function level.tokens_at_level(quota, units) return div(saturating_sub(quota[3], units), quota[1]) end

function level.refund_functions()
  local function refund(quota, state, now, cost, receipt)
    if quota[5] > 0 and is_new(quota, state, now) then return end
    local units_per_token, units_per_us, capacity = quota[1], quota[2], quota[3]
    local before, charged_level = level_at(quota, state, now), receipt.level_or_debt
    local drained = units_per_us * saturating_sub(now, receipt.at)
    local units = receipt.cost * units_per_token
    local needed = saturating_sub(charged_level, units) + min(units, capacity)
    local waits = drained < saturating_sub(needed, capacity)
    local others_wait_behind = before > capacity and before > saturating_sub(charged_level, drained)
    if others_wait_behind or (waits and cost < receipt.cost) then return end
    local drained_below_capacity = saturating_sub(drained, saturating_sub(charged_level, capacity))
    local certain = saturating_sub(cost * units_per_token, drained_below_capacity)
    write_level(quota, state, now, saturating_sub(before, min(certain, saturating_sub(charged_level, drained))))
  end

  return refund
end

function level.shares_state() return true end

local function convert_level(quota, writer, units)
  return min(mul_div_ceil(units, quota[1], writer[1]), max_level(quota))
end

-- Converts a state of the writer to this quota: the same number of tokens.
function level.convert_state(quota, writer, state, now)
  local copy = { 0, 0 }
  if quota[5] + writer[5] > 0 and is_new(writer, state, now) then return copy end
  write_level(quota, copy, now, convert_level(quota, writer, level_at(writer, state, now)))
  return copy
end

-- The retry time after a denial on a state of the writer, which continues to drain at the writer's rate.
function level.converted_retry(quota, writer, state, now, before, excess)
  if quota[5] + writer[5] > 0 and is_new(writer, state, now) then return 0 end
  local goal = mul_div(saturating_sub(before, excess), writer[1], quota[1])
  return div_ceil(saturating_sub(level_at(writer, state, now), goal), writer[2])
end
