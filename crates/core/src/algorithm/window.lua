-- Shared by the window algorithms: the port of window.rs.

local MAX_OVERDRAFT_WINDOWS = 1024

local function decide_window(kind, quota, state, now, cost, max_wait, overdraft, peek)
  local limit = quota[1]
  local first = min(cost, limit)
  local code, wait, at = NEVER, 0, now
  local affordable = limit
  if overdraft ~= OVERDRAFT_DENY then affordable = limit * MAX_OVERDRAFT_WINDOWS end
  if overdraft == OVERDRAFT_FORCE then cost = min(cost, affordable) end
  if cost <= affordable then
    at = kind.earliest_admission(quota, state, now, first)
    wait = saturating_sub(at, now)
    code = ALLOW
    if wait > 0 then
      if wait <= max_wait then code = DELAY else code = DENY end
    end
  end
  local charged = code <= DELAY and not peek and cost > 0
  if charged then
    kind.record(quota, state, at, first)
    local rest = cost - first
    while rest > 0 do
      local part = min(rest, limit)
      kind.record(quota, state, kind.earliest_admission(quota, state, at, part), part)
      rest = rest - part
    end
  end
  local remaining = kind.remaining(quota, state, now)
  local reset = saturating_sub(kind.reset_at(quota, state), now)
  if charged then return code, remaining, reset, wait, first, at, 0, 0 end
  return code, remaining, reset, wait
end
