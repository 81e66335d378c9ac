-- What the algorithms that count in windows share: the twin of window.rs.

local LONGEST_CREDIT = 1024

local function decide_in_window(kind, quota, state, now, cost, patience, credit, probe)
  local limit = quota[1]
  local first = min(cost, limit)
  local verb, wait, at = NEVER, 0, now
  local affordable = limit
  if credit ~= REFUSE then affordable = limit * LONGEST_CREDIT end
  if credit == FORCE then cost = min(cost, affordable) end
  if cost <= affordable then
    at = kind.earliest(quota, state, now, first)
    wait = since(at, now)
    verb = ALLOW
    if wait > 0 then
      if wait <= patience then verb = DELAY else verb = DENY end
    end
  end
  local charged = verb <= DELAY and not probe and cost > 0
  if charged then
    kind.record(quota, state, at, first)
    local rest = cost - first
    while rest > 0 do
      local part = min(rest, limit)
      kind.record(quota, state, kind.earliest(quota, state, at, part), part)
      rest = rest - part
    end
  end
  local remaining = kind.remaining(quota, state, now)
  local reset = since(kind.forgotten(quota, state), now)
  if charged then return verb, remaining, reset, wait, first, at, 0, 0 end
  return verb, remaining, reset, wait
end
