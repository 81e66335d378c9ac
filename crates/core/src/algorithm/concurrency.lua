-- Concurrency with leases: the port of concurrency.rs. A permit counts at the time it was acquired or renewed, as
-- in a strict sliding window. Parameters: limit, the length of a part, parts.

local concurrency = {
  new = sliding_strict.new,
  load = sliding_strict.load,
  save = sliding_strict.save,
  reset_at = sliding_strict.reset_at,
}

function concurrency.decide(quota, state, now, cost, max_wait, overdraft, peek)
  local limit = quota[1]
  local at = effective_now(quota, state, now)
  local in_flight = count_used_parts(quota, state, div(at, quota[2]))
  local code = ALLOW
  if cost > limit then code = NEVER elseif in_flight + cost > limit then code = LIMIT_REACHED end
  local charged = code == ALLOW and not peek and cost > 0
  if charged then
    sliding_strict.record(quota, state, at, cost)
    in_flight = in_flight + cost
  end
  local reset = saturating_sub(sliding_strict.reset_at(quota, state), now)
  if charged then return code, saturating_sub(limit, in_flight), reset, 0, cost, at, 0, 0 end
  return code, saturating_sub(limit, in_flight), reset, 0
end

function concurrency.refund_functions()
  local refund = sliding_strict.refund_functions()

  -- Counts a permit from now on, unless it has expired.
  local function renew(quota, state, now, receipt)
    local at = effective_now(quota, state, now)
    local index = div(receipt.at, quota[2])
    if index + quota[3] < div(at, quota[2]) or (state[index] or 0) < receipt.cost then return nil end
    refund(quota, state, now, receipt.cost, receipt)
    sliding_strict.record(quota, state, at, receipt.cost)
    return at
  end

  return refund, renew
end

-- Permits in flight stay in use under any limit.
function concurrency.shares_state() return true end

function concurrency.convert_state(quota, writer, state, now)
  if quota[2] == writer[2] then return state end
  local at = effective_now(writer, state, now)
  local in_flight = count_used_parts(writer, state, div(at, writer[2]))
  if at > now then at = div_ceil(at, quota[2]) * quota[2] end
  local converted = {}
  sliding_strict.record(quota, converted, at, in_flight)
  return converted
end
