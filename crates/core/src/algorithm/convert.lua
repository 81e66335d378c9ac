-- Exact products, to convert states that another quota wrote.

-- The integer part of a · b / c, and whether there is a remainder; exact for products of any size, bit by bit.
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
