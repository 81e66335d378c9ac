//! A smoothed signal: an exponential average with a half-life.
//!
//! ```text
//!   1 ┤    ┌──────────  signal
//!     │    │   .──''''  average: half of the way after one half-life
//!   0 ┼────┴─'────────▶ time
//! ```
//!
//! Readings may be irregular: each one covers the time since the previous one, so two readings of the same
//! value weigh as much as one that covers both periods.
//!
//! A reading at the time of the previous one covers no time, and changes nothing.

use tidegate_core::{Micros, SettingError};

/// An exponential average over time.
///
/// ```
/// use tidegate_overload::Ewma;
/// use tidegate_core::Micros;
///
/// let mut cpu = Ewma::new(Micros::from_secs(1))?;
/// cpu.observe(Micros::ZERO, 0.0);
/// cpu.observe(Micros::from_secs(1), 1.0);
/// assert_eq!(cpu.value(), Some(0.5));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ewma {
    half_life: Micros,
    last: Option<(Micros, f64)>,
}

impl Ewma {
    /// Creates an empty average that decays by half in every `half_life`.
    pub fn new(half_life: Micros) -> Result<Self, SettingError> {
        SettingError::require_finite("a half-life", half_life)?;
        Ok(Self { half_life, last: None })
    }

    /// Adds a reading. An invalid one (NaN, negative, infinite) is ignored, and so is one before the last.
    pub fn observe(&mut self, now: Micros, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        match self.last {
            None => self.last = Some((now, value)),
            Some((at, old)) if now > at => {
                let weight = decay(now.saturating_sub(at), self.half_life);
                self.last = Some((now, value + (old - value) * weight));
            }
            Some(_) => {}
        }
    }

    /// The average; `None` without a reading.
    pub fn value(&self) -> Option<f64> {
        self.last.map(|(_, value)| value)
    }

    /// Removes all readings.
    pub fn clear(&mut self) {
        self.last = None;
    }
}

/// Computes `2^(-elapsed / half_life)`: a half for each whole half-life, and a root of one half for each
/// binary digit of the fraction.
fn decay(elapsed: Micros, half_life: Micros) -> f64 {
    let (elapsed, half_life) = (elapsed.get(), half_life.get().max(1));
    let (halves, rest) = (elapsed / half_life, elapsed % half_life);
    let mut weight = 1.0;
    for _ in 0..halves.min(MAX_HALF_LIVES) {
        weight *= 0.5;
    }
    let mut fraction = rest as f64 / half_life as f64;
    for root in ROOTS_OF_HALF {
        fraction *= 2.0;
        if fraction >= 1.0 {
            fraction -= 1.0;
            weight *= root;
        }
    }
    weight
}

/// After this number of half-lives, the remaining weight is below the precision of a double.
const MAX_HALF_LIVES: u64 = 64;

/// The square root of one half, the root of that, and so on: enough of them for seven digits.
const ROOTS_OF_HALF: [f64; 24] = [
    core::f64::consts::FRAC_1_SQRT_2,
    0.840_896_415_253_714_5,
    0.917_004_043_204_671_2,
    0.957_603_280_698_573_7,
    0.978_572_062_087_700_1,
    0.989_228_013_193_975_5,
    0.994_599_423_483_633_2,
    0.997_296_056_085_470_1,
    0.998_647_112_890_970_2,
    0.999_323_327_502_650_7,
    0.999_661_606_496_243_7,
    0.999_830_788_931_929_1,
    0.999_915_390_886_613_5,
    0.999_957_694_548_431_1,
    0.999_978_847_050_491_9,
    0.999_989_423_469_314_4,
    0.999_994_711_720_674_3,
    0.999_997_355_856_841_4,
    0.999_998_677_927_546_7,
    0.999_999_338_963_554_9,
    0.999_999_669_481_722_8,
    0.999_999_834_740_847_7,
    0.999_999_917_370_420_5,
    0.999_999_958_685_209_4,
];

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::from_secs(1);

    #[test]
    fn value_halves_every_half_life() {
        for (elapsed, left) in [
            (0, 1.0),
            (500_000, core::f64::consts::FRAC_1_SQRT_2),
            (1_000_000, 0.5),
            (3_000_000, 0.125),
            (1_584_963, 1.0 / 3.0),
            (64_000_000_000, 0.0),
        ] {
            let weight = decay(Micros::new(elapsed), SECOND);
            assert!((weight - left).abs() < 1e-6, "{elapsed}us: {weight}");
        }
    }

    #[test]
    fn ignores_invalid_readings() {
        let mut average = Ewma::new(SECOND).unwrap();
        for invalid in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1] {
            average.observe(Micros::ZERO, invalid);
            assert_eq!(average.value(), None);
        }
        average.observe(SECOND, 0.25);
        for invalid in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1] {
            average.observe(Micros::from_secs(100), invalid);
        }
        average.observe(Micros::ZERO, 1.0);
        average.observe(SECOND, 1.0);
        assert_eq!(average.value(), Some(0.25));
        average.observe(Micros::from_secs(2), 0.75);
        assert_eq!(average.value(), Some(0.5));
        assert!(Ewma::new(Micros::ZERO).is_err() && Ewma::new(Micros::MAX).is_err());
    }
}
