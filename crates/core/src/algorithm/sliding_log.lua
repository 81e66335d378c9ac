-- Sliding log: the port of sliding_log.rs.
--
-- State: the earliest time for a new token, the capacity (the largest limit of the quotas that wrote), and the
-- timestamps of the last tokens, oldest first, seven bytes each. Parameters: limit, period.

local sliding_log = {}

-- The timestamp of the token with `newer` others after it.
local function log_timestamp(state, newer)
  return (unpack_from('>I7', state.log, #state.log - 7 * newer - 6))
end

local function count_used_log(quota, state, at)
  local counted, gone = 0, #state.log / 7
  while counted < gone do
    local middle = counted + floor((gone - counted) / 2)
    if saturating_add(log_timestamp(state, middle), quota[2]) > at then counted = middle + 1 else gone = middle end
  end
  return counted
end

function sliding_log.new() return { earliest = 0, capacity = 0, log = '' } end

function sliding_log.load(quota, text, at)
  local first, capacity, length, next = unpack_from('>I7I3I3', text, at)
  return { earliest = first, capacity = capacity, log = text:sub(next, next + 7 * length - 1) }, next + 7 * length
end

function sliding_log.save(quota, state)
  return pack('>I7I3I3', state.earliest, state.capacity, #state.log / 7) .. state.log
end

function sliding_log.earliest_admission(quota, state, now, cost)
  local at = max(now, state.earliest)
  local max_used = quota[1] - cost
  if cost == 0 or #state.log / 7 <= max_used then return at end
  return max(at, saturating_add(log_timestamp(state, max_used), quota[2]))
end

function sliding_log.record(quota, state, at, cost)
  local log = state.log .. pack('>I7', at):rep(cost)
  state.capacity = max(state.capacity, quota[1])
  state.log = log:sub(-7 * state.capacity)
  state.earliest = at
end

function sliding_log.remaining(quota, state, now)
  if state.earliest > now then return 0 end
  return saturating_sub(quota[1], count_used_log(quota, state, now))
end

function sliding_log.reset_at(quota, state)
  if state.log == '' then return state.earliest end
  return max(saturating_add(log_timestamp(state, 0), quota[2]), state.earliest)
end

function sliding_log.decide(quota, state, now, cost, max_wait, overdraft, peek)
  return decide_window(sliding_log, quota, state, now, cost, max_wait, overdraft, peek)
end

function sliding_log.refund_functions()
  local function refund(quota, state, now, cost, receipt)
    local length = #state.log / 7
    local newer = 0
    while newer < length and log_timestamp(state, newer) > receipt.at do
      newer = newer + 1
    end
    local removed = 0
    while removed < cost and newer + removed < length and log_timestamp(state, newer + removed) == receipt.at do
      removed = removed + 1
    end
    local keep_len = 7 * (length - newer)
    state.log = state.log:sub(1, keep_len - 7 * removed) .. state.log:sub(keep_len + 1)
  end

  return refund
end

function sliding_log.shares_state(quota, other) return quota[2] == other[2] end
