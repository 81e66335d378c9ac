-- Shared by the ports of the algorithms: constants and exact arithmetic.
--
-- A double represents integers up to 2^53 exactly; larger values are cut to that range, as in Rust.

local ALLOW, DELAY, DENY, NEVER, LIMIT_REACHED = 0, 1, 2, 3, 4
local OVERDRAFT_DENY, OVERDRAFT_GRANT, OVERDRAFT_FORCE = 0, 1, 2
local KEEP, RESET = 0, 1

local LARGEST_EXACT = 9007199254740991
local fmod, min, max, floor = math.fmod, math.min, math.max, math.floor
local pack, unpack_from = struct.pack, struct.unpack

-- The integer part of a / b; exact, unlike a quotient that is rounded first.
local function div(a, b)
  return (a - fmod(a, b)) / b
end

local function div_ceil(a, b)
  local rest = fmod(a, b)
  local whole = (a - rest) / b
  if rest > 0 then return whole + 1 end
  return whole
end

-- The sum of a time and a duration, at most the largest time.
local function saturating_add(time, duration)
  return min(time + duration, LARGEST_EXACT)
end

-- The duration from one time to another, at least zero.
local function saturating_sub(time, other)
  return max(time - other, 0)
end
