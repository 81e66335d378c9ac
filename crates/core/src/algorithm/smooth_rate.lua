-- Shared by Guava's two shapers: the port of shaper.rs, term by term in the same order.
--
-- State: stored permits, and the time at which the next call proceeds plus one (zero: unused key).
-- Parameters: limit, stable, max_permits, cool_down, threshold (negative: stored permits are free), slope.

local smooth_rate = {}

-- Decodes the state: an unused key has all its permits stored.
local function current_state(quota, state)
  if state[2] == 0 then return quota[3], 0 end
  return state[1], state[2] - 1
end

local function resync(quota, stored, free_at, now)
  if now <= free_at then return stored, free_at end
  return min(stored + (now - free_at) / quota[4], quota[3]), now
end

local function stored_permits_to_wait_time(quota, stored, used)
  local stable, threshold, slope = quota[2], quota[5], quota[6]
  if threshold < 0 then return 0 end
  local above, micros = stored - threshold, 0
  if above > 0 then
    local from_above = min(above, used)
    local length = (stable + above * slope) + (stable + (above - from_above) * slope)
    micros = floor(from_above * length / 2)
    used = used - from_above
  end
  return micros + floor(stable * used)
end

local function reset_after(quota, stored, free_at, now)
  stored, free_at = resync(quota, stored, free_at, now)
  local missing, idle = (quota[3] - stored) * quota[4], 0
  if missing > 0 then idle = min(floor(missing) + 2, LARGEST_EXACT) end
  return saturating_add(saturating_sub(free_at, now), idle)
end

function smooth_rate.new() return { 0, 0 } end

function smooth_rate.load(quota, text, at)
  local stored, free_at, next = unpack_from('>dI7', text, at)
  return { stored, free_at }, next
end

function smooth_rate.save(quota, state) return pack('>dI7', state[1], state[2]) end

function smooth_rate.reset_at(quota, state, now)
  local stored, free_at = current_state(quota, state)
  return saturating_add(now, reset_after(quota, stored, free_at, now))
end

function smooth_rate.decide(quota, state, now, cost, max_wait, overdraft, peek)
  local stored, free_at = current_state(quota, state)
  local wait = saturating_sub(free_at, now)
  local code = ALLOW
  if wait > 0 then
    if wait <= max_wait then code = DELAY else code = DENY end
  end
  local charged = code ~= DENY and not peek and cost > 0
  local debt, used = 0, 0
  if charged then
    stored, free_at = resync(quota, stored, free_at, now)
    used = min(cost, max(stored, 0))
    local served = free_at
    debt = stored_permits_to_wait_time(quota, stored, used) + floor((cost - used) * quota[2])
    stored, free_at = stored - used, saturating_add(served, debt)
    debt = free_at - served
    state[1], state[2] = stored, free_at + 1
  end
  local remaining = 0
  if free_at <= now then remaining = floor(max(resync(quota, stored, free_at, now), 0)) end
  local reset = reset_after(quota, stored, free_at, now)
  if charged then return code, remaining, reset, wait, cost, free_at, debt, used end
  return code, remaining, reset, wait
end

function smooth_rate.refund_functions()
  local function refund(quota, state, now, cost, receipt)
    if receipt.cost == 0 or state[2] == 0 then return end
    local stored, free_at = current_state(quota, state)
    if free_at > now and free_at ~= receipt.at then return end
    stored, free_at = resync(quota, stored, free_at, now)
    local share = cost / receipt.cost
    local unserved = min(min(floor(receipt.level_or_debt * share), LARGEST_EXACT), saturating_sub(receipt.at, now))
    local restored = saturating_sub(now, saturating_sub(receipt.at, receipt.level_or_debt)) / quota[4]
    local back = max(receipt.permits_or_epoch * share - restored, 0)
    if unserved == 0 and back == 0 then return end
    state[1] = min(stored + back, quota[3])
    state[2] = max(saturating_sub(free_at, unserved), min(now, free_at)) + 1
  end

  return refund
end

function smooth_rate.shares_state() return true end

function smooth_rate.convert_state(quota, writer, state, now)
  local stored, free_at = current_state(writer, state)
  stored, free_at = resync(writer, stored, free_at, now)
  local length, old_length = quota[3] * quota[4], writer[3] * writer[4]
  local fills_alike = math.abs(length - old_length) <= old_length * 1e-9
  if stored >= writer[3] and (free_at <= now or (quota[5] < 0 and not fills_alike)) then
    stored = quota[3]
  elseif quota[5] < 0 and not fills_alike then
    stored = stored + (quota[3] - writer[3])
  elseif stored >= 0 then
    stored = stored * quota[3] / writer[3]
  end
  return { min(stored, quota[3]), free_at + 1 }
end
