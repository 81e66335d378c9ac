-- Decides any number of requests in one call, at one time of the server's clock.
--
-- KEYS     the keys; or empty, and ARGV[2..] holds the keys (the batch of a cluster node spans slots)
-- ARGV[1]  a msgpack list of numbers: time (negative: the server's), number of quotas, quotas, requests
--          quota     kind, tag, rule, seven numbers
--          decide    0, flags, number of checks, checks        flags: 1 peek, 2 receipts, 4 take up to the cost
--            check   keyref, cost, max wait, overdraft
--            keyref  key, quota, count, flags, carry over      flags: 1 permits
--          refund    1, keyref, generation, cost, receipts
--          reset     2, keyref
--          renew     3, keyref, receipt
-- The value of a key is a generation byte, which counts its resets (zero: none), and entries: a tag of two bytes and a state.
-- The tag identifies the quota that wrote the state. A quota reads its own entry, or that of another quota with a compatible
-- state, which it converts only when it charges. So processes with different quotas can count the same key, and a denial
-- writes nothing. Quotas with incompatible states have separate entries.

local message = cmsgpack.unpack(ARGV[1])
local call, redis_pcall = redis.call, redis.pcall

local now, is_time_given = message[1], true
if now < 0 then
  local time = call('TIME')
  now, is_time_given = time[1] * 1000000 + time[2], false
end

local position = 3
local quotas, quota_count = {}, message[2]
for index = 1, quota_count do
  local p = position
  quotas[index] = {
    message[p + 3], message[p + 4], message[p + 5], message[p + 6], message[p + 7], message[p + 8], message[p + 9],
    kind = kinds[message[p]], index = message[p], tag = message[p + 1], rule = message[p + 2],
  }
  position = p + 10
end

local function find_quota(tag, rule)
  for index = 1, quota_count do
    local quota = quotas[index]
    if quota.tag == tag and quota.rule == rule then return quota end
  end
end

local cells, changed = {}, {}

-- Reads the entries of a key; sets `cell.unknown` to a tag that no quota has, for the caller to look up.
local function read_entries(cell, value, rule)
  cell.generation = value:byte(1)
  local at, length = 2, #value
  while at <= length do
    local tag
    tag, at = unpack_from('>I2', value, at)
    local writer = find_quota(tag, rule)
    if not writer then
      cell.unknown = tag
      return
    end
    local state
    state, at = writer.kind.load(writer, value, at)
    if at > length + 1 then error('cut off') end
    cell.entries[#cell.entries + 1] = { writer = writer, state = state }
  end
end

local function load_cell(key, first)
  local cell = cells[key]
  if cell then return cell end
  cell = { entries = {} }
  cells[key] = cell
  local value = redis_pcall('GET', KEYS[key] or ARGV[key + 1])
  if value then
    if type(value) == 'table' then
      cell.problem = value.err
      return cell
    end
    cell.exists = true
    -- A value that does not parse is not a state of Tidegate: treat the key as new.
    if not pcall(read_entries, cell, value, quotas[first].rule) then
      cell.entries, cell.unknown = {}, nil
    end
  end
  cell.generation = cell.generation or 0
  return cell
end

local function mark_changed(key, cell)
  if not cell.changed then
    cell.changed = true
    changed[#changed + 1] = key
  end
end

-- The maximum number of entries of other quotas, besides those of the quotas that charged the key last.
local MAX_OTHER_ENTRIES = 8

-- The entry that each quota reads: its own, or else the first unused one with a compatible state, or `false`.
-- With RESET a quota uses another quota's state only if a new entry would evict one.
local function match_entries(cell, first, count, carry_over)
  local entries, found = cell.entries, {}
  local own = true
  for nth = 1, count do
    local entry = entries[nth]
    own = own and entry and entry.writer.tag == quotas[first + nth - 1].tag
  end
  if own then return entries end
  local used, missing = {}, count
  for nth = 1, count do
    found[nth] = false
    for _, entry in ipairs(entries) do
      if not used[entry] and entry.writer.tag == quotas[first + nth - 1].tag then
        found[nth], used[entry] = entry, true
        missing = missing - 1
        break
      end
    end
  end
  local is_full = #entries + missing > count + MAX_OTHER_ENTRIES
  for nth = 1, count do
    local quota = quotas[first + nth - 1]
    if not found[nth] and (carry_over ~= RESET or is_full or quota.kind == kinds.concurrency) then
      for _, entry in ipairs(entries) do
        local writer = entry.writer
        if not used[entry] and writer.index == quota.index and quota.kind.shares_state(quota, writer) then
          found[nth], used[entry] = entry, true
          break
        end
      end
    end
  end
  return found
end

-- The state that a quota uses. A state of another quota is converted into a copy, because a denial must not change it.
local function effective_state(quota, entry)
  if not entry then return quota.kind.new() end
  if entry.writer.tag == quota.tag or not quota.kind.convert_state then return entry.state end
  return quota.kind.convert_state(quota, entry.writer, entry.state, now)
end

-- The rules for which a request of this call has a total. In the keys of other rules a total was replaced.
local rules_with_total = {}

local function is_replaced_total(writer) return writer.kind == kinds.total and not rules_with_total[writer.rule] end

-- The time until which an entry is stored. A total that another quota has replaced is stored for REPLACED_TOTAL_RETENTION after
-- the last write.
local function stored_until(entry)
  local writer = entry.writer
  local reset_at = writer.kind.reset_at(writer, entry.state, now)
  if is_replaced_total(writer) then return min(reset_at, now + REPLACED_TOTAL_RETENTION) end
  return reset_at
end

-- The keys with a total that may have a TTL: the quota that had replaced the total set it, and a denial writes nothing.
local returned_totals = {}

-- Marks a key that stores a total, and also a reset or an entry of a quota that is not in this check.
local function mark_returned_total(p)
  local key, first, count = message[p], message[p + 1], message[p + 2]
  if not rules_with_total[quotas[first].rule] then return end
  local cell = cells[key]
  local has_total, may_expire = false, cell.generation > 0
  for nth, entry in ipairs(cell.entries) do
    local writer = entry.writer
    has_total = has_total or (writer.kind == kinds.total and (cell.generation > 0 or stored_until(entry) > now))
    may_expire = may_expire or nth > count or writer.tag ~= quotas[first + nth - 1].tag
  end
  if has_total and may_expire then returned_totals[#returned_totals + 1] = key end
end

local out, size = {}, 0

-- Decides every quota of one check; returns whether all of them grant.
local function decide_check(p, cost, peek, receipts)
  local key, first, count, flags, carry_over = message[p], message[p + 1], message[p + 2], message[p + 3], message[p + 4]
  local max_wait, overdraft = message[p + 6], message[p + 7]
  local cell, granted = cells[key], true
  local found = match_entries(cell, first, count, carry_over)
  if receipts then
    size = size + 1
    out[size] = cell.generation
  end
  for nth = 1, count do
    local quota, entry = quotas[first + nth - 1], found[nth]
    local state = effective_state(quota, entry)
    local is_peek = peek or (quota.kind == kinds.concurrency and flags == 0)
    local code, a, b, c, charged, at, level_or_debt, permits_or_epoch =
      quota.kind.decide(quota, state, now, cost, max_wait, overdraft, is_peek)
    granted = granted and code <= DELAY
    if charged then
      if not entry then
        entry = {}
        cell.entries[#cell.entries + 1] = entry
      end
      entry.writer, entry.state = quota, state
      cell.first, cell.count = first, count
      mark_changed(key, cell)
    elseif code == DENY and entry and entry.writer.tag ~= quota.tag and quota.kind.converted_retry then
      c = quota.kind.converted_retry(quota, entry.writer, entry.state, now, a, b)
    end
    out[size + 1], out[size + 2], out[size + 3], out[size + 4] = code, a, b, c
    size = size + 4
    if receipts then
      out[size + 1], out[size + 2], out[size + 3], out[size + 4] = charged or 0, at or 0, level_or_debt or 0, permits_or_epoch or 0
      size = size + 4
    end
  end
  return granted
end

-- Starts the states of a check that change with time from the first check on, also if the check is then denied.
local function begin_check(p)
  local key, first, count = message[p], message[p + 1], message[p + 2]
  local cell, started, has_begun = cells[key], {}, false
  local found = match_entries(cell, first, count, message[p + 4])
  for nth = 1, count do
    local quota, entry = quotas[first + nth - 1], found[nth]
    if quota.kind.begin then
      started[nth] = quota.kind.begin(quota, entry and entry.writer, entry and entry.state, now)
      has_begun = has_begun or started[nth] ~= nil
    end
  end
  if not has_begun then return end
  -- Quotas without an entry get one too: a change of quotas matches entries in their order.
  local entries, own = {}, {}
  for nth = 1, count do
    if found[nth] then own[found[nth]] = true end
  end
  for _, entry in ipairs(cell.entries) do
    if own[entry] or entry.writer.kind.reset_at(entry.writer, entry.state, now) > now then entries[#entries + 1] = entry end
  end
  for nth = 1, count do
    local quota, entry = quotas[first + nth - 1], found[nth]
    if not entry then
      entries[#entries + 1] = { writer = quota, state = started[nth] or quota.kind.new() }
    elseif started[nth] then
      entry.writer, entry.state = quota, started[nth]
    end
  end
  cell.entries = entries
  mark_changed(key, cell)
end

-- The amount that one check can take: the least remaining amount of its quotas, and at least one; nil if one denies.
local function available_amount(p)
  local key, first, count = message[p], message[p + 1], message[p + 2]
  local cell, smallest = cells[key], message[p + 5]
  local found = match_entries(cell, first, count, message[p + 4])
  for nth = 1, count do
    local quota = quotas[first + nth - 1]
    local code, a = quota.kind.decide(quota, effective_state(quota, found[nth]), now, 1, 0, OVERDRAFT_DENY, true)
    if code ~= ALLOW then return nil end
    if quota.kind.tokens_at_level then a = quota.kind.tokens_at_level(quota, a) end
    smallest = min(smallest, max(a, 1))
  end
  return smallest
end

-- Loads the cell of a key; writes an error reply and returns false if it cannot be read.
local function open_cell(key, first, count)
  local cell = load_cell(key, first)
  local time_error
  for index = first, first + count - 1 do
    local kind = quotas[index].kind
    if kind == kinds.total then rules_with_total[quotas[index].rule] = true end
    time_error = time_error or (kind.time_error and kind.time_error(quotas[index], now))
  end
  if time_error then
    out[size + 1], out[size + 2] = 2, time_error
  elseif cell.problem then
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
  local peek, receipts, is_up_to = flags % 2 == 1, flags % 4 >= 2, flags >= 4
  local first = p + 3
  local last = first + 8 * (count - 1)
  local has_several_quotas = count > 1
  for q = first, last, 8 do
    if not open_cell(message[q], message[q + 1], message[q + 2]) then return last + 8 end
    has_several_quotas = has_several_quotas or message[q + 2] > 1
  end
  size = size + 1
  out[size] = 0
  if not peek then
    for q = first, last, 8 do
      if message[q + 5] > 0 then begin_check(q) end
      mark_returned_total(q)
    end
  end
  local cost = message[first + 5]
  if is_up_to then
    local left = available_amount(first)
    if left and left > 0 then cost = left else cost, peek = 1, true end
  end
  if has_several_quotas and not peek then
    local start, granted = size, true
    for q = first, last, 8 do
      granted = decide_check(q, is_up_to and cost or message[q + 5], true, receipts) and granted
    end
    if not granted then return last + 8 end
    size = start
  end
  for q = first, last, 8 do
    decide_check(q, is_up_to and cost or message[q + 5], peek, receipts)
  end
  return last + 8
end

local function read_receipt(p)
  return { cost = message[p], at = message[p + 1], level_or_debt = message[p + 2], permits_or_epoch = message[p + 3] }
end

local function refund(p)
  local key, first, count, _, _, generation, cost = unpack(message, p + 1, p + 7)
  local after = p + 8 + 4 * count
  local cell = open_cell(key, first, count)
  if not cell then return after end
  size = size + 1
  out[size] = 0
  local found = match_entries(cell, first, count, KEEP)
  for nth = 1, count do
    local quota, entry = quotas[first + nth - 1], found[nth]
    local receipt = read_receipt(p + 4 + 4 * nth)
    -- A charge of another quota or a reset settles open charges, except slots, which stay acquired until released.
    local is_current = entry and entry.writer.tag == quota.tag and cell.generation == generation
    local is_slot = entry and quota.kind == kinds.concurrency
    if receipt.cost > 0 and (is_current or is_slot) then
      local refund_charge = quota.kind.refund_functions()
      refund_charge(entry.writer, entry.state, now, min(cost, receipt.cost), receipt)
      mark_changed(key, cell)
    end
  end
  return after
end

-- Resets a key, except permits in flight. The key stays until charges from before the reset can no longer be refunded.
local function reset(p)
  local key, first = message[p + 1], message[p + 2]
  local cell = open_cell(key, first, message[p + 3])
  if not cell then return p + 6 end
  size = size + 1
  out[size] = 0
  if not cell.exists and not cell.changed then return p + 6 end
  for _, entry in ipairs(cell.entries) do
    local writer = entry.writer
    if writer.kind ~= kinds.concurrency then
      cell.keep_until = max(cell.keep_until or 0, stored_until(entry))
      entry.state = writer.kind.new()
    end
  end
  cell.generation = cell.generation % 255 + 1
  mark_changed(key, cell)
  return p + 6
end

local function renew(p)
  local cell = open_cell(message[p + 1], message[p + 2], message[p + 3])
  if not cell then return p + 10 end
  local at
  for _, entry in ipairs(cell.entries) do
    if entry.writer.kind == kinds.concurrency then
      local _, renew_slot = entry.writer.kind.refund_functions()
      at = renew_slot(entry.writer, entry.state, now, read_receipt(p + 6))
      if at then mark_changed(message[p + 1], cell) end
      break
    end
  end
  out[size + 1], out[size + 2] = 0, at or -1
  size = size + 2
  return p + 10
end

local operations = { [0] = decide, refund, reset, renew }
local length = #message
-- The position of each operation in the message, and the start of its reply.
local positions, starts, op_count = {}, {}, 0
while position <= length do
  op_count = op_count + 1
  positions[op_count], starts[op_count] = position, size
  position = operations[message[position]](position)
end

-- The entries to write: those of the quotas that charged last, in their order, then live entries of other quotas.
local function ordered_entries(cell)
  local entries, own, placed = cell.entries, {}, {}
  if not cell.first then return entries end
  for nth = 1, cell.count do
    for _, entry in ipairs(entries) do
      if not own[nth] and not placed[entry] and entry.writer.tag == quotas[cell.first + nth - 1].tag then
        own[nth], placed[entry] = entry, true
      end
    end
  end
  for _, entry in ipairs(entries) do
    local is_live = not placed[entry] and entry.writer.kind.reset_at(entry.writer, entry.state, now) > now
    if is_live and #own < cell.count + MAX_OTHER_ENTRIES then own[#own + 1] = entry end
  end
  return own
end

local has_failed = false
for _, key in ipairs(changed) do
  local cell, name = cells[key], KEYS[key] or ARGV[key + 1]
  local reset_at, parts, has_total = cell.keep_until or 0, { string.char(cell.generation) }, false
  for _, entry in ipairs(ordered_entries(cell)) do
    local writer = entry.writer
    reset_at = max(reset_at, stored_until(entry))
    has_total = has_total or (writer.kind == kinds.total and not is_replaced_total(writer))
    parts[#parts + 1] = pack('>I2', writer.tag) .. writer.kind.save(writer, entry.state)
  end
  local failed
  local ttl = (div(reset_at, TTL_STEP) + 2) * TTL_STEP / 1000 - div(now, 1000)
  if is_time_given then ttl = ttl + 3600000 end
  -- A reset key keeps at least its TTL: if it expired early, charges from before the reset would match a new generation 0.
  local is_permanent = reset_at == LARGEST_EXACT
  if cell.generation > 0 then
    local left = call('PTTL', name)
    if left == -1 then
      is_permanent, left = is_permanent or has_total, REPLACED_TOTAL_RETENTION / 1000
    end
    ttl = max(ttl, left)
  end
  if is_permanent then
    failed = redis_pcall('SET', name, table.concat(parts))
  elseif ttl > 0 and (reset_at > now or cell.generation > 0) then
    failed = redis_pcall('PSETEX', name, ttl, table.concat(parts))
  elseif cell.exists then
    failed = redis_pcall('DEL', name)
  end
  if type(failed) == 'table' and failed.err then
    -- Out of memory affects single keys; any other error affects the whole call.
    if not failed.err:find('OOM', 1, true) then return redis.error_reply(failed.err) end
    cell.failed, has_failed = failed.err, true
  end
end

-- After the writes: a server without memory accepts every write of a script after the first. A denial is valid without it.
for _, key in ipairs(returned_totals) do
  local name = KEYS[key] or ARGV[key + 1]
  if not cells[key].changed and call('PTTL', name) >= 0 then redis_pcall('PERSIST', name) end
end

-- The error of a key of an operation that was not written.
local function find_failure(p)
  if message[p] ~= 0 then return cells[message[p + 1]].failed end
  for q = p + 3, p + 3 + 8 * (message[p + 2] - 1), 8 do
    local cell = cells[message[q]]
    if cell and cell.failed then return cell.failed end
  end
end

-- Operations whose keys were not written return the error; the others keep their reply.
if has_failed then
  local all, total = out, 0
  out, starts[op_count + 1] = {}, size
  for index = 1, op_count do
    local failed = find_failure(positions[index])
    if failed then
      out[total + 1], out[total + 2] = 2, failed
      total = total + 2
    else
      for at = starts[index] + 1, starts[index + 1] do
        total = total + 1
        out[total] = all[at]
      end
    end
  end
end

return cmsgpack.pack(out)
