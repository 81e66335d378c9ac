-- The only Lua that touches keys: one call decides any number of requests at one moment of the server's clock.
--
-- KEYS     the keys, or none of them, and then ARGV holds them from the second on (a cluster's batch spans slots)
-- ARGV[1]  a message of numbers: moment (negative: the server's), count of quotas, quotas, requests
--          quota     kind, tag, rule, six numbers
--          decide    0, flags, count of asks, asks             flags: 1 probe, 2 receipts, 4 as much as there is
--            ask     place, cost, patience, credit
--            place   key, quota, count, flags, inherit         flags: 1 permits, 2 tiers
--          refund    1, place, generation, cost, receipts
--          reset     2, place
--          renew     3, place, receipt
-- A key's value is a byte that counts its resets (zero: none), and for each quota a tag of two bytes and its state. The tag tells
-- which quota wrote it, so that processes with different quotas understand each other.

local message = cmsgpack.unpack(ARGV[1])
local call, pcall_redis = redis.call, redis.pcall

local now, injected = message[1], true
if now < 0 then
  local time = call('TIME')
  now, injected = time[1] * 1000000 + time[2], false
end

local position = 3
local quotas, count_of_quotas = {}, message[2]
for index = 1, count_of_quotas do
  local p = position
  quotas[index] = {
    message[p + 3], message[p + 4], message[p + 5], message[p + 6], message[p + 7], message[p + 8],
    kind = kinds[message[p]], index = message[p], tag = message[p + 1], rule = message[p + 2],
  }
  position = p + 9
end

local function quota_of_tag(tag, rule)
  for index = 1, count_of_quotas do
    local quota = quotas[index]
    if quota.tag == tag and quota.rule == rule then return quota end
  end
end

-- A state that another quota wrote, as a state of this one.
local function inherited(quota, old, state, how)
  if old.kind.forgotten(old, state, now) <= now then return quota.kind.new() end
  if old.index == quota.index and (how ~= RESET or quota.kind == kinds.concurrency) then
    local _, inherit = quota.kind.rare()
    return inherit(quota, old, state, now, how)
  end
  local fresh = quota.kind.new()
  if how ~= RESET and quota.kind ~= kinds.concurrency then
    local limit = quota[1]
    if quota.kind.limit then limit = quota.kind.limit(quota) end
    quota.kind.decide(quota, fresh, now, limit, 0, REFUSE, false)
  end
  return fresh
end

local cells, changed = {}, {}

-- Reads the states of a key; a tag that no quota has is kept for the caller to ask about.
local function read(cell, value, first, count)
  cell.generation = value:byte(1)
  local at = 2
  for place = 1, count do
    if at > #value then return end
    local tag
    tag, at = unpack_from('>I2', value, at)
    local quota = quotas[first + place - 1]
    if tag ~= quota.tag then quota = quota_of_tag(tag, quota.rule) end
    if not quota then
      cell.unknown = tag
      return
    end
    cell.writers[place] = quota
    cell.states[place], at = quota.kind.load(quota, value, at)
    if at > #value + 1 then error('cut off') end
  end
end

local function cell_of(key, first, count)
  local cell = cells[key]
  if cell then return cell end
  cell = { states = {}, writers = {}, first = first, count = count }
  cells[key] = cell
  local value = pcall_redis('GET', KEYS[key] or ARGV[key + 1])
  if value then
    if type(value) == 'table' then
      cell.problem = value.err
      return cell
    end
    cell.exists = true
    -- What somebody else wrote there is no state of ours: the key is as good as new.
    if not pcall(read, cell, value, first, count) then
      cell.states, cell.writers, cell.unknown = {}, {}, nil
    end
  end
  cell.generation = cell.generation or 0
  return cell
end

local function touch(key, cell)
  if not cell.changed then
    cell.changed = true
    changed[#changed + 1] = key
  end
end

local out, size = {}, 0

-- The state in which a key counts under a quota, by its place among the quotas of its rule.
local function state_of(key, cell, place, quota, tiers, how)
  local state, writer = cell.states[place], cell.writers[place]
  if not state then return quota.kind.new() end
  -- What one tier has forgotten is forgotten, though another would remember it for longer.
  if tiers and writer.kind.forgotten(writer, state, now) <= now then return quota.kind.new() end
  if writer.tag == quota.tag then return state end
  if tiers then
    -- A copy: a denial must leave the history as the other tier wrote it.
    state = inherited(quota, writer, (writer.kind.load(writer, writer.kind.save(writer, state), 1)), how)
  else
    state = inherited(quota, writer, state, how)
    cell.states[place], cell.writers[place] = state, quota
    touch(key, cell)
  end
  return state
end

-- Asks every quota of one ask; whether all of them grant.
local function ask(p, cost, probe, receipts)
  local key, first, count, flags, how = message[p], message[p + 1], message[p + 2], message[p + 3], message[p + 4]
  local patience, credit = message[p + 6], message[p + 7]
  local permits, tiers = flags % 2 == 1, flags >= 2
  local cell, granted = cells[key], true
  if receipts then
    size = size + 1
    out[size] = cell.generation
  end
  for place = 1, count do
    local quota = quotas[first + place - 1]
    local state = state_of(key, cell, place, quota, tiers, how)
    local looks = probe or (quota.kind == kinds.concurrency and not permits)
    local verb, a, b, c, taken, at, mark, stored =
      quota.kind.decide(quota, state, now, cost, patience, credit, looks)
    granted = granted and verb <= DELAY
    if taken then
      cell.states[place], cell.writers[place] = state, quota
      touch(key, cell)
    end
    out[size + 1], out[size + 2], out[size + 3], out[size + 4] = verb, a, b, c
    size = size + 4
    if receipts then
      out[size + 1], out[size + 2], out[size + 3], out[size + 4] = taken or 0, at or 0, mark or 0, stored or 0
      size = size + 4
    end
  end
  return granted
end

-- How much there is for one ask: the least that any of its quotas has left, one where only debt is left to make.
local function amount_left(p)
  local key, first, count, flags = message[p], message[p + 1], message[p + 2], message[p + 3]
  local cell, least = cells[key], message[p + 5]
  for place = 1, count do
    local quota = quotas[first + place - 1]
    local state = state_of(key, cell, place, quota, flags >= 2, message[p + 4])
    local verb, a = quota.kind.decide(quota, state, now, 1, 0, REFUSE, true)
    if verb ~= ALLOW then return nil end
    if quota.kind.left then a = quota.kind.left(quota, a) end
    least = min(least, max(a, 1))
  end
  return least
end

-- Opens the cells of a request; false when one of them cannot be read.
local function opened(key, first, count)
  local cell = cell_of(key, first, count)
  if cell.problem then
    out[size + 1], out[size + 2] = 2, cell.problem
  elseif cell.unknown then
    out[size + 1], out[size + 2] = 1, cell.unknown
  else
    return cell
  end
  size = size + 2
  return false
end

local function decide(p)
  local flags, count = message[p + 1], message[p + 2]
  local probe, receipts, up_to = flags % 2 == 1, flags % 4 >= 2, flags >= 4
  local first = p + 3
  local last = first + 8 * (count - 1)
  local several = count > 1
  for q = first, last, 8 do
    if not opened(message[q], message[q + 1], message[q + 2]) then return last + 8 end
    several = several or message[q + 2] > 1
  end
  size = size + 1
  out[size] = 0
  local cost = message[first + 5]
  if up_to then
    local left = amount_left(first)
    if left and left > 0 then cost = left else cost, probe = 1, true end
  end
  if several and not probe then
    local start, granted = size, true
    for q = first, last, 8 do
      granted = ask(q, up_to and cost or message[q + 5], true, receipts) and granted
    end
    if not granted then return last + 8 end
    size = start
  end
  for q = first, last, 8 do
    ask(q, up_to and cost or message[q + 5], probe, receipts)
  end
  return last + 8
end

local function receipt_at(p)
  return { cost = message[p], at = message[p + 1], mark = message[p + 2], stored = message[p + 3] }
end

local function refund(p)
  local key, first, count, _, _, generation, cost = unpack(message, p + 1, p + 7)
  local after = p + 8 + 4 * count
  local cell = opened(key, first, count)
  if not cell then return after end
  size = size + 1
  out[size] = 0
  for place = 1, count do
    local quota, writer = quotas[first + place - 1], cell.writers[place]
    local receipt = receipt_at(p + 4 + 4 * place)
    -- Another quota, another tier or a reset settles what was outstanding; but slots are held until they are given back.
    local counts = writer and writer.tag == quota.tag and cell.generation == generation
    local is_slot = writer and writer.kind == kinds.concurrency and quota.kind == kinds.concurrency
    if receipt.cost > 0 and (counts or is_slot) then
      local give_back = writer.kind.rare()
      give_back(writer, cell.states[place], now, min(cost, receipt.cost), receipt)
      touch(key, cell)
    end
  end
  return after
end

-- Forgets a key, but for permits in flight. It stays until what was taken before could not be given back any more.
local function reset(p)
  local key, first, count = message[p + 1], message[p + 2], message[p + 3]
  local cell = opened(key, first, count)
  if not cell then return p + 6 end
  size = size + 1
  out[size] = 0
  if not cell.exists and not cell.changed then return p + 6 end
  for place = 1, count do
    local state, writer = cell.states[place], cell.writers[place]
    if state and writer.kind ~= kinds.concurrency then
      cell.keep_until = max(cell.keep_until or 0, writer.kind.forgotten(writer, state, now))
      cell.states[place] = writer.kind.new()
    end
  end
  cell.generation = cell.generation % 255 + 1
  touch(key, cell)
  return p + 6
end

local function renew(p)
  local key, first, count = message[p + 1], message[p + 2], message[p + 3]
  local cell = opened(key, first, count)
  if not cell then return p + 10 end
  local place, at = 1, nil
  while place < count and quotas[first + place - 1].kind ~= kinds.concurrency do place = place + 1 end
  local writer = cell.writers[place]
  if writer and writer.kind == kinds.concurrency then
    local _, _, again = writer.kind.rare()
    at = again(writer, cell.states[place], now, receipt_at(p + 6))
    if at then touch(key, cell) end
  end
  out[size + 1], out[size + 2] = 0, at or -1
  size = size + 2
  return p + 10
end

local operations = { [0] = decide, refund, reset, renew }
local length = #message
while position <= length do
  position = operations[message[position]](position)
end

for _, key in ipairs(changed) do
  local cell, name = cells[key], KEYS[key] or ARGV[key + 1]
  local forgotten, parts = cell.keep_until or 0, { string.char(cell.generation) }
  for place = 1, cell.count do
    local writer = cell.writers[place] or quotas[cell.first + place - 1]
    local state = cell.states[place] or writer.kind.new()
    forgotten = max(forgotten, writer.kind.forgotten(writer, state, now))
    parts[#parts + 1] = pack('>I2', writer.tag) .. writer.kind.save(writer, state)
  end
  local failed
  local ttl = (div(forgotten, SPAN) + 2) * SPAN / 1000 - div(now, 1000)
  if injected then ttl = ttl + 3600000 end
  -- A key that was reset stays for as long as it would have: what was taken before must not look like taken since.
  if cell.generation > 0 then ttl = max(ttl, call('PTTL', name)) end
  if ttl > 0 and (forgotten > now or cell.generation > 0) then
    failed = pcall_redis('PSETEX', name, ttl, table.concat(parts))
  elseif cell.exists then
    failed = pcall_redis('DEL', name)
  end
  if type(failed) == 'table' and failed.err then return redis.error_reply(failed.err) end
end

return cmsgpack.pack(out)
