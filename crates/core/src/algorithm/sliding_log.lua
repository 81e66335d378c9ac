-- Sliding log: the twin of sliding_log.rs.
--
-- State: a moment before which nothing may be placed, how many tokens are remembered (the largest limit of those that wrote), and
-- the moments of the last tokens, oldest first, seven bytes each. Numbers: limit, period.

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

function sliding_log.new() return { first = 0, places = 0, log = '' } end

function sliding_log.load(quota, text, at)
  local first, places, length, next = unpack_from('>I7I3I3', text, at)
  return { first = first, places = places, log = text:sub(next, next + 7 * length - 1) }, next + 7 * length
end

function sliding_log.save(quota, state)
  return pack('>I7I3I3', state.first, state.places, #state.log / 7) .. state.log
end

function sliding_log.earliest(quota, state, now, cost)
  local at = max(now, state.first)
  local may_stay = quota[1] - cost
  if cost == 0 or #state.log / 7 <= may_stay then return at end
  return max(at, plus(moment_of_log(state, may_stay), quota[2]))
end

function sliding_log.record(quota, state, at, cost)
  local log = state.log .. pack('>I7', at):rep(cost)
  state.places = max(state.places, quota[1])
  state.log = log:sub(-7 * state.places)
  state.first = at
end

function sliding_log.remaining(quota, state, now)
  if state.first > now then return 0 end
  return since(quota[1], used_in_log(quota, state, now))
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

  return refund
end

function sliding_log.shares(quota, other) return quota[2] == other[2] end
