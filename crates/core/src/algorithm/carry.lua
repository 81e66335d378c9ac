-- How tokens carry over when a quota changes.

-- The whole part of a · b / c, and whether anything is left; exact, bit by bit, however large the product.
local function mul_div(a, b, c)
  local whole = div(a, c)
  local quotient, rest, part = whole * b, 0, a - whole * c
  local small, bit = 0, 4503599627370496
  while bit >= 1 do
    small = small + small
    rest = rest + rest
    if rest >= c then
      small, rest = small + 1, rest - c
    end
    if b >= bit then
      b = b - bit
      if rest >= c - part then
        small, rest = small + 1, rest - (c - part)
      else
        rest = rest + part
      end
    end
    bit = bit / 2
  end
  return quotient + small, rest > 0
end

local function mul_div_ceil(a, b, c)
  local quotient, more = mul_div(a, b, c)
  if more then return quotient + 1 end
  return quotient
end

-- What counts as used under a new limit, when `used` of the old one was.
local function carry(used, old_limit, new_limit, how)
  if how == RESET then return 0 end
  if how == ADDITIVE or used == 0 then return used end
  if how == PROPORTIONALLY then return mul_div_ceil(used, new_limit, old_limit) end
  if used > old_limit then return new_limit + (used - old_limit) end
  return since(new_limit, old_limit - used)
end
