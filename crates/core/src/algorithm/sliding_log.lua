-- Sliding log: the twin of sliding_log.rs.
--
-- State: a moment before which nothing may be placed, and the moments of the last tokens, oldest first, seven bytes
-- each. Numbers: limit, period.

local sliding_log = {}

-- The moment of the token with `newer` others after it.
local function moment_of_log(state, newer)
  return (unpack_from('>I7', state.log, #state.log - 7 * newer - 6))
end

local function used_in_log(quota, state, at)
  local counted, gone = 0, #state.log / 7
  while counted < gone do
    local middle = counted + floor((gone - counted) / 2)
    if plus(moment_of_log(state, middle), quota[2]) > at then counted = middle + 1 else gone = middle end
  end
  return counted
end

function sliding_log.new() return { first = 0, log = '' } end

function sliding_log.load(quota, text, at)
  local first, length, next = unpack_from('>I7I3', text, at)
  return { first = first, log = text:sub(next, next + 7 * length - 1) }, next + 7 * length
end

function sliding_log.save(quota, state)
  return pack('>I7I3', state.first, #state.log / 7) .. state.log
end

function sliding_log.earliest(quota, state, now, cost)
  local at = max(now, state.first)
  local may_stay = quota[1] - cost
  if cost == 0 or #state.log / 7 <= may_stay then return at end
  return max(at, plus(moment_of_log(state, may_stay), quota[2]))
end

function sliding_log.record(quota, state, at, cost)
  local log = state.log .. pack('>I7', at):rep(cost)
  state.log = log:sub(-7 * quota[1])
  state.first = at
end

function sliding_log.remaining(quota, state, now)
  if state.first > now then return 0 end
  return quota[1] - used_in_log(quota, state, now)
end

function sliding_log.forgotten(quota, state)
  if state.log == '' then return state.first end
  return max(plus(moment_of_log(state, 0), quota[2]), state.first)
end

function sliding_log.decide(quota, state, now, cost, patience, credit, probe)
  return decide_in_window(sliding_log, quota, state, now, cost, patience, credit, probe)
end

function sliding_log.rare()
  local function refund(quota, state, now, cost, receipt)
    local length = #state.log / 7
    local newer = 0
    while newer < length and moment_of_log(state, newer) > receipt.at do
      newer = newer + 1
    end
    local removed = 0
    while removed < cost and newer + removed < length and moment_of_log(state, newer + removed) == receipt.at do
      removed = removed + 1
    end
    local kept = 7 * (length - newer)
    state.log = state.log:sub(1, kept - 7 * removed) .. state.log:sub(kept + 1)
  end

  local function inherit(quota, old, state, now, how)
    if how == ADDITIVE and quota[1] == old[1] then return state end
    local at = max(now, state.first)
    local used = min(carry(used_in_log(old, state, at), old[1], quota[1], how), quota[1])
    local fresh = sliding_log.new()
    sliding_log.record(quota, fresh, at, used)
    return fresh
  end

  return refund, inherit
end
