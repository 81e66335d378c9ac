-- Concurrency with leases: the twin of concurrency.rs. A permit counts in the part of time it was taken or renewed in,
-- as in a strict sliding window. Numbers: limit, the length of a part, parts.

local concurrency = {
  new = sliding_strict.new,
  load = sliding_strict.load,
  save = sliding_strict.save,
  forgotten = sliding_strict.forgotten,
}

function concurrency.decide(quota, state, now, cost, patience, credit, probe)
  local limit = quota[1]
  local at = moment_of_parts(quota, state, now)
  local held = used_in_parts(quota, state, div(at, quota[2]))
  local verb = ALLOW
  if cost > limit then verb = NEVER elseif held + cost > limit then verb = FULL end
  local charged = verb == ALLOW and not probe and cost > 0
  if charged then
    sliding_strict.record(quota, state, at, cost)
    held = held + cost
  end
  local reset = since(sliding_strict.forgotten(quota, state), now)
  if charged then return verb, since(limit, held), reset, 0, cost, at, 0, 0 end
  return verb, since(limit, held), reset, 0
end

function concurrency.rare()
  local refund = sliding_strict.rare()

  -- Counts a permit from now on, if it still counts at all.
  local function renew(quota, state, now, receipt)
    local at = moment_of_parts(quota, state, now)
    local taken = div(receipt.at, quota[2])
    if taken + quota[3] < div(at, quota[2]) or (state[taken] or 0) < receipt.cost then return nil end
    refund(quota, state, now, receipt.cost, receipt)
    sliding_strict.record(quota, state, at, receipt.cost)
    return at
  end

  return refund, renew
end

-- Permits in flight are facts: they stay held under any limit.
function concurrency.shares() return true end

function concurrency.carried(quota, writer, state, now)
  if quota[2] == writer[2] then return state end
  local at = moment_of_parts(writer, state, now)
  local held = used_in_parts(writer, state, div(at, writer[2]))
  if at > now then at = div_ceil(at, quota[2]) * quota[2] end
  local fresh = {}
  sliding_strict.record(quota, fresh, at, held)
  return fresh
end
