//! A limit that follows the load: less under pressure, more while there is room and need for it.
//!
//! ```text
//!   load 100% ┤  shrink, a step in every interval, down to the floor
//!        high ┤─────────────────────────────────────────────────────
//!             │  stay
//!         low ┤─────────────────────────────────────────────────────
//!          0% ┤  back to x1; beyond it only while the limit is used up, to the ceiling
//! ```
//!
//! Between the marks it stays where it is, and does not return to x1: a load that a smaller limit brought down would
//! rise again with the limit, and the two would chase each other. For the same reason one step may not lead from mark
//! to mark, which is checked when the settings are made.
//!
//! Its surprise: it never grows beyond x1 for a limit that nobody uses up, however idle the machine. Such a limit would
//! only be higher when the flood comes; and one that was grown and is used no more comes back to x1.

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
    /// From `high` on the limit shrinks; up to `low` it may grow. 50 % and 80 % unless told otherwise.
    pub fn load_thresholds(self, low: Percent, high: Percent) -> Result<Self, SettingError> {
        Self { low, high, ..self }.validate()
    }

    /// What one step down and one step up multiply by; x0.8 and x1.1 unless told otherwise.
    pub fn steps(self, shrink: Ratio, grow: Ratio) -> Result<Self, SettingError> {
        Self { shrink, grow, ..self }.validate()
    }

    /// The least and the most that the limit is multiplied by; x0.1 and x2 unless told otherwise. A ceiling of x1
    /// never gives more than was declared.
    pub fn factor_range(self, floor: Ratio, ceiling: Ratio) -> Result<Self, SettingError> {
        Self { floor, ceiling, ..self }.validate()
    }

    /// Up to which share of its use a limit counts as unused, and from which as used up; 30 % and 70 % unless told
    /// otherwise.
    pub fn usage_thresholds(self, unused: Percent, used_up: Percent) -> Result<Self, SettingError> {
        Self { low_usage: unused, high_usage: used_up, ..self }.validate()
    }

    /// The least time between two steps, in which the last one shows its effect; five seconds unless told otherwise.
    /// Give the smoothing of the load a few half-lives.
    pub fn interval(self, interval: Micros) -> Result<Self, SettingError> {
        Self { interval, ..self }.validate()
    }

    /// The least that the limit is multiplied by.
    pub fn floor(&self) -> Ratio {
        self.floor
    }

    /// The most that the limit is multiplied by.
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
            interval: every,
        } = self;
        SettingError::require_finite("a time between two steps", every)?;
        if low >= high || unused >= used_up {
            let (low, high) = if low >= high { (low, high) } else { (unused, used_up) };
            return Err(SettingError::new(
                format!("a low mark of {low} and a high mark of {high}"),
                "leave room between them, or the limit flaps",
            ));
        }
        if shrink >= Ratio::ONE || grow <= Ratio::ONE {
            return Err(SettingError::new(
                format!("a step down of {shrink} and one up of {grow}"),
                "step down by less than x1 and up by more",
            ));
        }
        if floor > Ratio::ONE || ceiling < Ratio::ONE || floor < Ratio::from_thousandths(1) {
            return Err(SettingError::new(
                format!("a floor of {floor} and a ceiling of {ceiling}"),
                "give a floor from x0.001 to x1 and a ceiling from x1",
            ));
        }
        let (low_mark, high_mark) = (u64::from(low.millionths()), u64::from(high.millionths()));
        if shrink.apply(high_mark) <= low_mark || grow.apply(low_mark) >= high_mark {
            return Err(SettingError::new(
                format!("steps of {shrink} and {grow} lead from {high} to {low} or back at once"),
                "take smaller steps, or marks that are further apart",
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

/// The factor of a limit that follows the load.
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
/// assert_eq!(at(5, "60%", "100%"), "x0.8"); // between the marks
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

    /// Takes in the load and how much of the limit is used at `now`, and tells the factor. Without a load, because
    /// there is no signal, it goes back to x1.
    pub fn observe(&mut self, now: Micros, load: Option<Percent>, used: Percent) -> Ratio {
        // A clock that steps back begins the wait anew.
        self.last_step = self.last_step.map(|stepped| stepped.min(now));
        if self.last_step.is_some_and(|stepped| now.since(stepped) < self.scale.interval) {
            return self.factor;
        }
        let next = self.next_factor(load, used);
        if next != self.factor {
            self.factor = next;
            self.last_step = Some(now);
        }
        self.factor
    }

    /// The factor as of the last look.
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

    /// One step towards x1, and not past it.
    fn step_to_one(&self) -> Ratio {
        match self.factor < Ratio::ONE {
            true => self.step_up().min(Ratio::ONE),
            false => self.step_down().max(Ratio::ONE),
        }
    }

    /// Factors are kept in thousandths, so that they can be read, and amounts stay round.
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
