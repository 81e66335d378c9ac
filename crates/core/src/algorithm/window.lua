-- Shared by the window algorithms: the port of window.rs.

local MAX_OVERDRAFT_WINDOWS = 1024

local function decide_window(kind, quota, state, now, cost, max_wait, overdraft, probe)
  local limit = quota[1]
  local first = min(cost, limit)
  local code, wait, at = NEVER, 0, now
  local affordable = limit
  if overdraft ~= REFUSE then affordable = limit * MAX_OVERDRAFT_WINDOWS end
  if overdraft == FORCE then cost = min(cost, affordable) end
  if cost <= affordable then
    at = kind.earliest_admission(quota, state, now, first)
    wait = since(at, now)
    code = ALLOW
    if wait > 0 then
      if wait <= max_wait then code = DELAY else code = DENY end
    end
  end
  local charged = code <= DELAY and not probe and cost > 0
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
  local reset = since(kind.reset_at(quota, state), now)
  if charged then return code, remaining, reset, wait, first, at, 0, 0 end
  return code, remaining, reset, wait
end
