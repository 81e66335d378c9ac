//! A factor: `x2`, `x0.5`, `x1/3`.

use crate::{math::gcd, setting::SettingError};
use alloc::format;
use core::{cmp::Ordering, fmt, str::FromStr};

/// A factor for a limit, as an exact fraction above zero.
///
/// ```
/// use tidegate_core::Ratio;
///
/// let half: Ratio = "x0.5".parse()?;
/// assert_eq!((half.apply(7), half.multiply(half).to_string().as_str()), (3, "x0.25"));
/// assert_eq!("x1/3".parse::<Ratio>()?.apply(100), 33);
/// assert!("x0".parse::<Ratio>().is_err());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// The factor 1.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// `numerator / denominator`; neither may be zero.
    pub fn new(numerator: u64, denominator: u64) -> Result<Self, SettingError> {
        SettingError::require_nonzero("a factor", numerator)?;
        SettingError::require_nonzero("the divisor of a factor", denominator)?;
        Ok(Self::reduce(numerator.into(), denominator.into()))
    }

    /// `thousandths / 1000`, with at least one thousandth.
    #[doc(hidden)]
    pub fn from_thousandths(thousandths: u64) -> Self {
        Self::reduce(thousandths.max(1).into(), 1_000)
    }

    /// The numerator, in lowest terms.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// The denominator, in lowest terms.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// The ratio as the nearest double.
    pub fn as_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// `amount` times the factor, rounded down, at most `u64::MAX`.
    pub fn apply(self, amount: u64) -> u64 {
        crate::math::mul_div_floor(amount, self.numerator, self.denominator)
    }

    /// The product of two factors. It is exact if numerator and denominator fit in 64 bits.
    #[must_use]
    pub fn multiply(self, other: Self) -> Self {
        Self::reduce(
            u128::from(self.numerator) * u128::from(other.numerator),
            u128::from(self.denominator) * u128::from(other.denominator),
        )
    }

    /// Reduces to lowest terms; drops low bits of both numbers if they still exceed 64 bits.
    fn reduce(numerator: u128, denominator: u128) -> Self {
        let (mut a, mut b) = (numerator, denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let divisor = a.max(1);
        let (mut numerator, mut denominator) = (numerator / divisor, denominator / divisor);
        while numerator.max(denominator) > u128::from(u64::MAX) {
            (numerator, denominator) = (numerator >> 1, denominator >> 1);
        }
        let (numerator, denominator) = ((numerator as u64).max(1), (denominator as u64).max(1));
        let divisor = gcd(numerator, denominator);
        Self { numerator: numerator / divisor, denominator: denominator / divisor }
    }
}

impl Default for Ratio {
    fn default() -> Self {
        Self::ONE
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.numerator) * u128::from(other.denominator);
        left.cmp(&(u128::from(other.numerator) * u128::from(self.denominator)))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Parses `x2`, `x0.25` and `x1/3`, with up to nine decimal places.
impl FromStr for Ratio {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let invalid = || {
            SettingError::new(
                format!("invalid factor `{text}`"),
                "write a factor, as in `x2`, `x0.5` or `x1/3`",
            )
        };
        let number = text.trim().strip_prefix('x').ok_or_else(invalid)?;
        if let Some((numerator, denominator)) = number.split_once('/') {
            let (numerator, denominator) = (parse_digits(numerator), parse_digits(denominator));
            return Self::new(numerator.ok_or_else(invalid)?, denominator.ok_or_else(invalid)?);
        }
        let (whole_part, places) = number.split_once('.').unwrap_or((number, "0"));
        let denominator = u32::try_from(places.len()).ok().filter(|places| *places <= MAX_DECIMALS);
        let denominator = 10_u64.pow(denominator.ok_or_else(invalid)?);
        let (whole_part, places) =
            (parse_digits(whole_part).ok_or_else(invalid)?, parse_digits(places).ok_or_else(invalid)?);
        let numerator = whole_part.checked_mul(denominator).and_then(|all| all.checked_add(places));
        Self::new(numerator.ok_or_else(invalid)?, denominator)
    }
}

/// The maximum number of decimal places in a factor.
const MAX_DECIMALS: u32 = 9;

/// Parses digits only: no sign, no space.
fn parse_digits(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Prints as `x1.5` if nine decimal places are exact, else as `x1/3`.
impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { numerator, denominator } = *self;
        let scale = 10_u64.pow(MAX_DECIMALS);
        if !scale.is_multiple_of(denominator) {
            return write!(f, "x{numerator}/{denominator}");
        }
        write!(f, "x{}", numerator / denominator)?;
        match numerator % denominator * (scale / denominator) {
            0 => Ok(()),
            places => write!(f, ".{}", format!("{places:09}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn ratio_text_round_trips() {
        for text in ["x1", "x2", "x0.5", "x1.25", "x0.000000001", "x1/3", "x22/7", "x1000000"] {
            assert_eq!(text.parse::<Ratio>().unwrap().to_string(), text);
        }
        for (written, printed) in [("x2/4", "x0.5"), ("x1.50", "x1.5"), (" x2 ", "x2"), ("x6/9", "x2/3")] {
            assert_eq!(written.parse::<Ratio>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn parse_rejects_invalid_ratios() {
        for text in
            ["", "x", "2", "x0", "x0.0", "x-1", "x+1", "x1.", "x.5", "xNaN", "x1/0", "x0/1", "x1/2/3", "x1e3"]
        {
            assert!(text.parse::<Ratio>().is_err(), "{text}");
        }
        assert!(
            "x0.0000000001".parse::<Ratio>().is_err() && "x99999999999999999999".parse::<Ratio>().is_err()
        );
    }

    #[test]
    fn multiplication_is_exact_and_saturates() {
        let third = Ratio::new(1, 3).unwrap();
        assert_eq!((third.apply(100), third.multiply(Ratio::new(3, 1).unwrap())), (33, Ratio::ONE));
        assert_eq!(Ratio::new(2, 1).unwrap().apply(u64::MAX), u64::MAX);
        assert!(third < Ratio::new(334, 1_000).unwrap() && third > Ratio::new(333, 1_000).unwrap());
        let (long, huge) = (Ratio::new(u64::MAX, u64::MAX - 1).unwrap(), Ratio::new(u64::MAX, 1).unwrap());
        assert!((long.multiply(long).as_f64() - 1.0).abs() < 1e-9);
        assert!(huge.multiply(huge).apply(1) >= u64::MAX - 1);
    }
}
