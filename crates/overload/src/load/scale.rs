//! Scales a limit by load: down under pressure, up while there is spare capacity and demand.
//!
//! ```text
//!   load 100% ┤  shrink by one step per interval, down to the floor
//!        high ┤─────────────────────────────────────────────────────
//!             │  stay
//!         low ┤─────────────────────────────────────────────────────
//!          0% ┤  back to x1; above it only while the limit is used up, up to the ceiling
//! ```
//!
//! Between the thresholds the factor does not change, and does not return to x1: the load that a lower limit brought down
//! would rise again with the limit, and both would oscillate. For the same reason one step must not cross from one
//! threshold to the other, which is validated.
//!
//! A limit that is not used up never grows above x1, however idle the machine: it would only admit more of a later burst.
//! A grown limit that is no longer used up returns to x1.

use tidegate_core::{Micros, Percent, Ratio, SettingError};

/// How a limit follows the load.
///
/// ```
/// use tidegate_overload::ScalePolicy;
/// use tidegate_core::Micros;
///
/// let scale = ScalePolicy::default()
///     .load_thresholds("40%".parse()?, "70%".parse()?)?
///     .factor_range("x0.25".parse()?, "x4".parse()?)?
///     .interval(Micros::from_secs(2))?;
/// assert!(scale.steps("x0.5".parse()?, "x1.1".parse()?).is_err()); // half of 70% is under 40%
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalePolicy {
    low: Percent,
    high: Percent,
    shrink: Ratio,
    grow: Ratio,
    floor: Ratio,
    ceiling: Ratio,
    low_usage: Percent,
    high_usage: Percent,
    interval: Micros,
}

impl ScalePolicy {
    /// Sets the load from which the limit shrinks (`high`) and up to which it may grow (`low`); 50 % and 80 %
    /// by default.
    pub fn load_thresholds(self, low: Percent, high: Percent) -> Result<Self, SettingError> {
        Self { low, high, ..self }.validate()
    }

    /// Sets the factors of one step down and one step up; x0.8 and x1.1 by default.
    pub fn steps(self, shrink: Ratio, grow: Ratio) -> Result<Self, SettingError> {
        Self { shrink, grow, ..self }.validate()
    }

    /// Sets the minimum and the maximum factor; x0.1 and x2 by default. With a ceiling of x1 the limit never
    /// exceeds the declared one.
    pub fn factor_range(self, floor: Ratio, ceiling: Ratio) -> Result<Self, SettingError> {
        Self { floor, ceiling, ..self }.validate()
    }

    /// Sets the usage up to which a limit counts as unused, and from which it counts as used up; 30 % and 70
    /// % by default.
    pub fn usage_thresholds(self, unused: Percent, used_up: Percent) -> Result<Self, SettingError> {
        Self { low_usage: unused, high_usage: used_up, ..self }.validate()
    }

    /// Sets the minimum time between two steps, in which the effect of the last one shows; five seconds by
    /// default. It should be several half-lives of the load's smoothing.
    pub fn interval(self, interval: Micros) -> Result<Self, SettingError> {
        Self { interval, ..self }.validate()
    }

    /// The load up to which the limit may grow.
    pub fn low_load(&self) -> Percent {
        self.low
    }

    /// The load from which the limit shrinks.
    pub fn high_load(&self) -> Percent {
        self.high
    }

    /// The minimum time between two steps.
    pub fn step_interval(&self) -> Micros {
        self.interval
    }

    /// The minimum factor.
    pub fn floor(&self) -> Ratio {
        self.floor
    }

    /// The maximum factor.
    pub fn ceiling(&self) -> Ratio {
        self.ceiling
    }

    fn validate(self) -> Result<Self, SettingError> {
        let Self {
            low,
            high,
            shrink,
            grow,
            floor,
            ceiling,
            low_usage: unused,
            high_usage: used_up,
            interval,
        } = self;
        SettingError::require_finite("a step interval", interval)?;
        if low >= high || unused >= used_up {
            let (low, high) = if low >= high { (low, high) } else { (unused, used_up) };
            return Err(SettingError::new(
                format!("a low threshold of {low} and a high threshold of {high}"),
                "set the low one below the high one to prevent flapping",
            ));
        }
        if shrink >= Ratio::ONE || grow <= Ratio::ONE {
            return Err(SettingError::new(
                format!("a step down of {shrink} and a step up of {grow}"),
                "give a step down below x1 and a step up above x1",
            ));
        }
        if floor > Ratio::ONE || ceiling < Ratio::ONE || floor < Ratio::from_thousandths(1) {
            return Err(SettingError::new(
                format!("a floor of {floor} and a ceiling of {ceiling}"),
                "give a floor from x0.001 to x1 and a ceiling of x1 or more",
            ));
        }
        let (low_load, high_load) = (u64::from(low.millionths()), u64::from(high.millionths()));
        if shrink.apply(high_load) <= low_load || grow.apply(low_load) >= high_load {
            return Err(SettingError::new(
                format!("one step of {shrink} or {grow} crosses from {high} to {low} or back"),
                "use smaller steps, or thresholds that are further apart",
            ));
        }
        Ok(self)
    }
}

impl Default for ScalePolicy {
    fn default() -> Self {
        let percent = |percent| Percent::from_ratio(percent, 100);
        Self {
            low: percent(50),
            high: percent(80),
            shrink: Ratio::from_thousandths(800),
            grow: Ratio::from_thousandths(1_100),
            floor: Ratio::from_thousandths(100),
            ceiling: Ratio::from_thousandths(2_000),
            low_usage: percent(30),
            high_usage: percent(70),
            interval: Micros::from_secs(5),
        }
    }
}

/// Computes the factor of a limit that follows the load.
///
/// ```
/// use tidegate_overload::{ScalePolicy, Scaler};
/// use tidegate_core::{Micros, Percent};
///
/// let mut scaler = Scaler::new(ScalePolicy::default());
/// let mut at = |second, load: &str, used: &str| {
///     let (load, used) = (load.parse().unwrap(), used.parse().unwrap());
///     scaler.observe(Micros::from_secs(second), Some(load), used).to_string()
/// };
/// assert_eq!(at(0, "90%", "100%"), "x0.8");
/// assert_eq!(at(1, "90%", "100%"), "x0.8"); // one step in five seconds
/// assert_eq!(at(5, "60%", "100%"), "x0.8"); // between the thresholds
/// assert_eq!(at(6, "20%", "0%"), "x0.88"); // on the way back
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaler {
    scale: ScalePolicy,
    factor: Ratio,
    last_step: Option<Micros>,
}

impl Scaler {
    /// Starts with the declared limit: x1.
    pub fn new(scale: ScalePolicy) -> Self {
        Self { scale, factor: Ratio::ONE, last_step: None }
    }

    /// Continues from the factor and the time of the last step of another one, within the range of this policy.
    #[must_use]
    pub fn resume(self, previous: &Self) -> Self {
        let factor = previous.factor.clamp(self.scale.floor, self.scale.ceiling);
        Self { factor, last_step: previous.last_step, ..self }
    }

    /// Updates the factor to the load and the usage of the limit at `now`, and returns it. Without a load
    /// signal it returns to x1.
    pub fn observe(&mut self, now: Micros, load: Option<Percent>, used: Percent) -> Ratio {
        // A clock that steps back restarts the interval.
        self.last_step = self.last_step.map(|stepped| stepped.min(now));
        if self.last_step.is_some_and(|stepped| now.saturating_sub(stepped) < self.scale.interval) {
            return self.factor;
        }
        let next = self.next_factor(load, used);
        if next != self.factor {
            self.factor = next;
            self.last_step = Some(now);
        }
        self.factor
    }

    /// The factor at the last update.
    pub fn factor(&self) -> Ratio {
        self.factor
    }

    fn next_factor(&self, load: Option<Percent>, used: Percent) -> Ratio {
        let ScalePolicy { low, high, floor, ceiling, low_usage: unused, high_usage: used_up, .. } =
            self.scale;
        let Some(load) = load else { return self.step_to_one() };
        if load >= high {
            return self.step_down().max(floor);
        }
        if load > low {
            return self.factor;
        }
        if self.factor < Ratio::ONE || used <= unused {
            return self.step_to_one();
        }
        match used >= used_up {
            true => self.step_up().min(ceiling),
            false => self.factor,
        }
    }

    /// One step towards x1, not past it.
    fn step_to_one(&self) -> Ratio {
        match self.factor < Ratio::ONE {
            true => self.step_up().min(Ratio::ONE),
            false => self.step_down().max(Ratio::ONE),
        }
    }

    /// Factors are rounded to thousandths, so that they stay readable and limits round.
    fn step_down(&self) -> Ratio {
        Ratio::from_thousandths(self.factor.multiply(self.scale.shrink).apply(1_000))
    }

    fn step_up(&self) -> Ratio {
        let exact = self.factor.multiply(self.scale.grow);
        match Ratio::from_thousandths(exact.apply(1_000)) {
            rounded if rounded < exact => Ratio::from_thousandths(exact.apply(1_000).saturating_add(1)),
            rounded => rounded,
        }
    }
}
