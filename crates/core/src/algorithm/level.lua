-- A level that rises with cost and drains with time: the twin of level.rs.
--
-- State: the moment at which the level is zero, and the units it is then below zero: one that does not drain a
-- whole number of microseconds. Numbers: price, drain, capacity, queue.

local level = {}

-- The highest level: 71 years of drain, or what the queue holds.
local function most(quota)
  return max(quota[4], min(quota[2] * 2251799813685248, LARGEST))
end

local function level_at(quota, state, now)
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

-- As few bytes as the drain needs.
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

function level.forgotten(quota, state) return state[1] end

function level.decide(quota, state, now, cost, patience, credit, probe)
  local price, drain, capacity = quota[1], quota[2], quota[3]
  local before = level_at(quota, state, now)
  local units = cost * price
  local after = before + units
  -- Not the sum less the capacity: a sum of two large levels is not exact.
  local excess = before - (capacity - units)
  if cost > 1 and units > capacity then
    if credit == REFUSE or (credit == GRANT and units > most(quota) - before) then return NEVER, before, 0, 0 end
    excess = before
  end
  local verb = ALLOW
  if excess > 0 then
    if credit ~= FORCE then
      if patience == 0 or excess > drain * patience then return DENY, before, excess, 0 end
      local over = excess - (quota[4] - capacity)
      if over > 0 then return DENY, before, over, 0 end
    end
    verb = DELAY
  else
    excess = 0
  end
  if probe or cost == 0 then return verb, before, excess, 0 end
  if after > LARGEST or after > most(quota) then
    after = most(quota)
    cost = div(since(after, before), price)
  end
  write_level(quota, state, now, after)
  return verb, after, excess, 0, cost, now, after, 0
end

function level.limit(quota) return quota[3] / quota[1] end

-- How many tokens are left at a level.
function level.left(quota, units) return div(since(quota[3], units), quota[1]) end

function level.rare()
  local function refund(quota, state, now, cost, receipt)
    local price, drain, capacity = quota[1], quota[2], quota[3]
    local before, mark = level_at(quota, state, now), receipt.mark
    local drained = drain * since(now, receipt.at)
    local units = receipt.cost * price
    local needed = since(mark, units) + min(units, capacity)
    local waits = drained < since(needed, capacity)
    local others_wait_behind = before > capacity and before > since(mark, drained)
    if others_wait_behind or (waits and cost < receipt.cost) then return end
    local drained_below_capacity = since(drained, since(mark, capacity))
    local certain = since(cost * price, drained_below_capacity)
    write_level(quota, state, now, since(before, min(certain, since(mark, drained))))
  end

  return refund
end

function level.shares() return true end

local function converted(quota, writer, units)
  return min(mul_div_ceil(units, quota[1], writer[1]), most(quota))
end

-- A state of the writer as one of this quota: as many tokens.
function level.carried(quota, writer, state, now)
  local copy = { 0, 0 }
  write_level(quota, copy, now, converted(quota, writer, level_at(writer, state, now)))
  return copy
end

-- When to ask again after a denial on a state of the writer: it goes on draining at the writer's rate.
function level.retry_carried(quota, writer, state, now, before, excess)
  local goal = mul_div(since(before, excess), writer[1], quota[1])
  return div_ceil(since(level_at(writer, state, now), goal), writer[2])
end
