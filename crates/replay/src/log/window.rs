//! The window in which lines are sorted by time.

use std::{fmt, str::FromStr};
use tidegate_core::{Micros, Quota, Rate, RateUnit};

/// The number of bytes by which a line may be out of order and is still sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortWindow(usize);

/// The size of a sort window is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid size `{0}`; write a size from 1MiB to 256MiB, as in `16MiB`")]
pub struct SortWindowError(String);

const MIN_BYTES: usize = 1 << 20;
const MAX_BYTES: usize = 256 << 20;

impl SortWindow {
    /// The size in bytes.
    pub fn bytes(self) -> usize {
        self.0
    }
}

impl Default for SortWindow {
    fn default() -> Self {
        Self(MIN_BYTES)
    }
}

impl fmt::Display for SortWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % MIN_BYTES {
            0 => write!(f, "{}MiB", self.0 / MIN_BYTES),
            _ => write!(f, "{} bytes", self.0),
        }
    }
}

impl FromStr for SortWindow {
    type Err = SortWindowError;

    fn from_str(text: &str) -> Result<Self, SortWindowError> {
        // The quota parser reads sizes too: any whole number of bytes per microsecond is exact.
        let quota = format!("{text}/us").parse::<Quota>();
        let rate = quota.ok().and_then(|quota| quota.rate());
        let is_size = |unit, period| unit == RateUnit::Bytes && period == Micros::new(1);
        let size = rate.filter(|rate| is_size(rate.unit(), rate.period())).map(Rate::amount);
        let size = size.and_then(|size| usize::try_from(size).ok());
        let size = size.filter(|size| (MIN_BYTES..=MAX_BYTES).contains(size));
        size.map(Self).ok_or_else(|| SortWindowError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sort_window_is_a_size_within_bounds() {
        for (text, expected) in
            [("1MiB", "1MiB"), ("16MiB", "16MiB"), ("256MiB", "256MiB"), ("2MB", "2000000 bytes")]
        {
            assert_eq!(text.parse::<SortWindow>().unwrap().to_string(), expected);
        }
        for text in ["", "16", "1kB", "257MiB", "16MiB/s", "lots", "-1MiB", "99999999999999999999GiB"] {
            let error = text.parse::<SortWindow>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid size `{text}`; write a size from 1MiB")), "{error}");
        }
    }
}
