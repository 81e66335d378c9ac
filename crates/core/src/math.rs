//! Integer arithmetic with explicit rounding.

/// Greatest common divisor; `gcd(0, n) == n`.
pub(crate) const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// `a · b / c` rounded down, at most `u64::MAX`; `c` must not be zero.
pub(crate) fn mul_div_floor(a: u64, b: u64, c: u64) -> u64 {
    let exact = u128::from(a) * u128::from(b) / u128::from(c);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// `a · b / c` rounded up, at most `u64::MAX`; `c` must not be zero.
pub(crate) fn mul_div_ceil(a: u64, b: u64, c: u64) -> u64 {
    let exact = (u128::from(a) * u128::from(b)).div_ceil(u128::from(c));
    u64::try_from(exact).unwrap_or(u64::MAX)
}
