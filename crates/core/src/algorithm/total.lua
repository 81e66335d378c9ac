-- Total: the port of total.rs.
--
-- State: the tokens that are used. Parameters: limit.

local total = {}

function total.new() return { 0 } end

function total.load(quota, text, at)
  local used, next = unpack_from('>I7', text, at)
  return { used }, next
end

function total.save(quota, state) return pack('>I7', state[1]) end

-- A used key never expires: the largest time.
function total.reset_at(quota, state)
  if state[1] == 0 then return 0 end
  return LARGEST_EXACT
end

function total.decide(quota, state, now, cost, max_wait, overdraft, peek)
  local limit, used = quota[1], state[1]
  local after = min(used + cost, LARGEST_EXACT)
  local code = NEVER
  if after <= limit or cost == 0 or overdraft == OVERDRAFT_FORCE then code = ALLOW end
  local charged = code == ALLOW and not peek and cost > 0
  if charged then state[1] = after else after = used end
  local reset = LARGEST_EXACT
  if after == 0 then reset = 0 end
  local remaining = saturating_sub(limit, after)
  if charged then return code, remaining, reset, 0, after - used, 0, 0, 0 end
  return code, remaining, reset, 0
end

function total.refund_functions()
  local function refund(quota, state, now, cost) state[1] = saturating_sub(state[1], cost) end

  return refund
end

-- Used tokens stay used under any limit.
function total.shares_state() return true end
