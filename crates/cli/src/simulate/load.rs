//! Synthetic loads: deterministic shapes of arrivals, scaled to the quotas.

use super::{rate, time};
use crate::error::CliError;
use clap::ValueEnum;
use std::{fmt, ops::Range};
use tidegate_core::{Micros, Quota, Rate, RateUnit};
use tidegate_simulation::SimulatedRequest;

/// The maximum number of decisions; more do not add information.
pub(crate) const MAX_DECISIONS: usize = 10_000_000;

/// The distribution of arrivals over time. Lengths are fractions of the window, so that a shape fits any quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadShape {
    /// A constant rate
    Steady,
    /// One burst, a quarter of a window long
    Burst,
    /// Two such bursts, just before and just after the end of a window
    Boundary,
    /// A linear increase from zero to the rate
    Ramp,
    /// The rate for a quarter of a window, then a pause of a quarter, alternating
    OnOff,
}

impl LoadShape {
    /// The rate that shows the effect of a quota, in tenths of the rate of the quota.
    fn rate_tenths(self) -> u64 {
        match self {
            Self::Steady => 15,
            // A quarter of a window offers 20% more than the quota of the whole window.
            Self::Burst | Self::Boundary => 48,
            Self::Ramp | Self::OnOff => 30,
        }
    }
}

/// A shape with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyntheticLoad {
    pub(crate) shape: LoadShape,
    /// The rate while requests arrive; for a ramp, at its end.
    pub(crate) rate: Rate,
    /// The cost of each request.
    pub(crate) cost: u64,
    /// The duration of the load.
    pub(crate) length: Micros,
    /// The window that the shape is scaled to.
    pub(crate) window: Micros,
}

/// Parses a rate such as `200/min`, with the grammar and errors of quotas.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, CliError> {
    let quota: Quota = text.parse().map_err(|error| CliError::input(format!("--rate: {error}")))?;
    match quota.rate() {
        Some(rate) if rate.quota() == Ok(quota) => Ok(rate.with_unit(RateUnit::Requests)),
        _ => Err(CliError::input(format!("--rate: `{text}` is not a rate\nwrite `200/min` or `5 per 10s`"))),
    }
}

/// The default cost of a request: 1, or a thousandth of the largest quota if that is above 100,000 per window. It is smaller
/// for a quota that cannot grant ten such requests at once, unless there would be too many requests.
pub(crate) fn default_cost(quotas: &[Quota], window: Micros, hold: Micros) -> u64 {
    let nominal = quotas.iter().map(|quota| rate::nominal(quota, window)).max().unwrap_or(0);
    if nominal <= 100_000 {
        return 1;
    }
    let smallest = quotas.iter().map(Quota::limit).min().unwrap_or(1);
    // No shape offers more than four times the quota in two windows, the default duration.
    let least = (max_nominal(quotas, window, hold) * 4).div_ceil((MAX_DECISIONS / quotas.len()) as u128);
    (nominal / 1_000).min(smallest / 10).max(u64::try_from(least).unwrap_or(u64::MAX))
}

/// The rate that shows the effect of the largest quota.
pub(crate) fn default_rate(
    shape: LoadShape,
    quotas: &[Quota],
    window: Micros,
    hold: Micros,
    cost: u64,
) -> Rate {
    let tenths = max_nominal(quotas, window, hold) * u128::from(shape.rate_tenths());
    let requests = tenths.div_ceil(10 * u128::from(cost.max(1)));
    Rate::new(u64::try_from(requests).unwrap_or(u64::MAX).max(1), window)
}

/// What the largest quota admits in a window. `hold` converts a number in flight to a rate.
fn max_nominal(quotas: &[Quota], window: Micros, hold: Micros) -> u128 {
    let nominal = quotas.iter().map(|quota| {
        let amount = u128::from(rate::nominal(quota, window));
        match quota.is_concurrency() {
            false => amount,
            true => amount * u128::from(window.get()) / u128::from(hold.get().max(1)),
        }
    });
    nominal.max().unwrap_or(0)
}

impl SyntheticLoad {
    /// Returns all arrivals in order; an error if there are more than `max`.
    pub(crate) fn arrivals(&self, max: usize) -> Result<Vec<SimulatedRequest>, CliError> {
        let length = self.length.get();
        let times: Box<dyn Iterator<Item = u64>> = match self.shape {
            LoadShape::Steady => Box::new(self.even_arrivals(0..length)),
            LoadShape::Burst | LoadShape::Boundary => {
                Box::new(self.bursts().into_iter().flat_map(|burst| self.even_arrivals(burst)))
            }
            LoadShape::Ramp => Box::new(self.ramp_arrivals()),
            LoadShape::OnOff => Box::new(self.on_off_arrivals()),
        };
        let arrival = |at| SimulatedRequest { at: Micros::new(at), cost: self.cost };
        let times = times.take_while(|at| *at < length).take(max + 1);
        let arrivals: Vec<_> = times.map(arrival).collect();
        match arrivals.len() {
            0 => {
                let fix = match self.shape {
                    LoadShape::Ramp => "use a higher --rate or a longer --for",
                    _ => "use a longer --for",
                };
                Err(CliError::input(format!("no requests: {self}\n{fix}")))
            }
            count if count > max => {
                let fix = "use a lower --rate, a shorter --for or fewer quotas";
                Err(CliError::input(format!("more than {max} requests per quota: {self}\n{fix}")))
            }
            _ => Ok(arrivals),
        }
    }

    /// The bursts of a shape with one or two, even if they exceed the duration of the load.
    fn bursts(&self) -> Vec<Range<u64>> {
        let (window, each) = (self.window.get(), self.burst_length());
        let starts = match self.shape {
            LoadShape::Burst => vec![window / 2],
            LoadShape::Boundary => {
                let (boundary, gap) = (self.boundary(), window / 30);
                vec![boundary - gap - each, boundary + gap]
            }
            LoadShape::Steady | LoadShape::Ramp | LoadShape::OnOff => Vec::new(),
        };
        starts.into_iter().map(|start| start..start + each).collect()
    }

    /// The length of a burst.
    fn burst_length(&self) -> u64 {
        (self.window.get() / 4).max(1)
    }

    /// The last window boundary in the first half of the load, or the first one.
    fn boundary(&self) -> u64 {
        let window = self.window.get();
        (self.length.get() / 2 / window).max(1) * window
    }

    /// Arrivals at the rate, computed from their index, so they do not drift.
    fn even_arrivals(&self, phase: Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let (amount, period) = (u128::from(self.rate.amount().max(1)), u128::from(self.rate.period().get()));
        (0_u128..)
            .map(move |index| u128::from(phase.start) + index * period / amount)
            .take_while(move |at| *at < u128::from(phase.end))
            .filter_map(|at| u64::try_from(at).ok())
    }

    /// Arrivals at the rate, with pauses.
    fn on_off_arrivals(&self) -> impl Iterator<Item = u64> + use<> {
        let burst = self.burst_length();
        self.even_arrivals(0..self.length.get()).map(move |on| on / burst * 2 * burst + on % burst)
    }

    /// Arrivals with a linearly increasing rate: their number grows with the square of the time.
    fn ramp_arrivals(&self) -> impl Iterator<Item = u64> + use<> {
        let length = self.length.get() as f64;
        let count = self.rate.amount() as f64 * length / self.rate.period().get() as f64 / 2.0;
        let total = count as u64;
        (0..total).map(move |index| (length * ((index as f64 + 0.5) / count).sqrt()) as u64)
    }
}

/// Describes the load in one line.
impl fmt::Display for SyntheticLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let burst = time::format_rough(Micros::new(self.burst_length()));
        let each = u128::from(self.rate.amount()) * u128::from(self.burst_length());
        let each = requests_text(each.div_ceil(u128::from(self.rate.period().get().max(1))));
        match self.shape {
            LoadShape::Steady => write!(f, "steady: {} for {}", self.rate, self.length)?,
            LoadShape::Burst => write!(f, "burst: {each} within {burst}")?,
            LoadShape::Boundary => {
                let boundary = Micros::new(self.boundary());
                write!(f, "boundary: two bursts of {each} around {boundary}, where a window ends")?;
            }
            LoadShape::Ramp => write!(f, "ramp: from nothing to {} in {}", self.rate, self.length)?,
            LoadShape::OnOff => {
                write!(f, "on-off: {} for {burst}, then nothing for {burst}, in turn", self.rate)?;
            }
        }
        if self.bursts().iter().any(|burst| burst.end > self.length.get()) {
            write!(f, ", cut off after {}", self.length)?;
        }
        if self.cost == 1 { Ok(()) } else { write!(f, ", each at cost {}", self.cost) }
    }
}

/// A number of requests with its noun.
pub(crate) fn requests_text(count: u128) -> String {
    if count == 1 { "1 request".into() } else { format!("{count} requests") }
}
