-- What the twins share: the numbers that stand for words, and arithmetic that never rounds by accident.
--
-- A double holds whole numbers up to 2^53 exactly; nothing here leaves that range without being cut to it, as in Rust.

local ALLOW, DELAY, DENY, NEVER, FULL = 0, 1, 2, 3, 4
local REFUSE, GRANT, FORCE = 0, 1, 2
local KEEP, RESET = 0, 1

local LARGEST_EXACT = 9007199254740991
local fmod, min, max, floor = math.fmod, math.min, math.max, math.floor
local pack, unpack_from = struct.pack, struct.unpack

-- The whole part of a / b; unlike a quotient that is rounded first, it is exact.
local function div(a, b)
  return (a - fmod(a, b)) / b
end

local function div_ceil(a, b)
  local rest = fmod(a, b)
  local whole = (a - rest) / b
  if rest > 0 then return whole + 1 end
  return whole
end

-- A moment and a length, at most the last moment there is.
local function plus(moment, length)
  return min(moment + length, LARGEST_EXACT)
end

-- How far one moment is past another, at least zero.
local function since(moment, other)
  return max(moment - other, 0)
end
