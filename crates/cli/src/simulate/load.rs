//! Loads that are made up: deterministic shapes of arrivals, sized to the quotas that they try.

use super::{rate, time};
use crate::error::CliError;
use clap::ValueEnum;
use std::{fmt, ops::Range};
use tidegate_core::{Micros, Quota, Rate, RateUnit};
use tidegate_simulation::SimulatedRequest;

/// More decisions than this say nothing that fewer do not.
pub(crate) const MAX_DECISIONS: usize = 10_000_000;

/// How arrivals are spread over time. Lengths are parts of the window, so that a shape fits any quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadShape {
    /// The same rate all the time
    Steady,
    /// One burst, a quarter of a window long
    Burst,
    /// Two such bursts, just before and just after the end of a window
    Boundary,
    /// From nothing to the rate, evenly
    Ramp,
    /// The rate for a quarter of a window, then nothing for a quarter
    OnOff,
}

impl LoadShape {
    /// The rate that shows what a quota does, in tenths of the quota's own.
    fn rate_tenths(self) -> u64 {
        match self {
            Self::Steady => 15,
            // In a quarter of a window, a fifth more than fits in the whole.
            Self::Burst | Self::Boundary => 48,
            Self::Ramp | Self::OnOff => 30,
        }
    }
}

/// A shape with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyntheticLoad {
    /// How arrivals are spread.
    pub(crate) shape: LoadShape,
    /// How many arrive while they do; for a ramp, at its end.
    pub(crate) rate: Rate,
    /// What each of them asks for.
    pub(crate) cost: u64,
    /// How long it goes on.
    pub(crate) length: Micros,
    /// The window that the shape is fitted to.
    pub(crate) window: Micros,
}

/// Reads a rate such as `200/min`, with the core's own grammar and errors.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, CliError> {
    let quota: Quota = text.parse().map_err(|error| CliError::input(format!("--rate: {error}")))?;
    match quota.rate() {
        Some(rate) if rate.quota() == Ok(quota) => Ok(rate.with_unit(RateUnit::Requests)),
        _ => Err(CliError::input(format!("--rate: `{text}` is not a rate\nwrite `200/min` or `5 per 10s`"))),
    }
}

/// What a request costs when nobody says: one, or a thousandth of the largest quota where that is more than 100,000
/// in a window. It is less for a quota that cannot grant ten of these at once, unless too many would arrive then.
pub(crate) fn default_cost(quotas: &[Quota], window: Micros, hold: Micros) -> u64 {
    let nominal = quotas.iter().map(|quota| rate::nominal(quota, window)).max().unwrap_or(0);
    if nominal <= 100_000 {
        return 1;
    }
    let smallest = quotas.iter().map(Quota::limit).min().unwrap_or(1);
    // No shape offers four times the quota in the two windows that a load is long.
    let least = (max_nominal(quotas, window, hold) * 4).div_ceil((MAX_DECISIONS / quotas.len()) as u128);
    (nominal / 1_000).min(smallest / 10).max(u64::try_from(least).unwrap_or(u64::MAX))
}

/// The rate that shows what the largest of the quotas does.
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

/// What the largest of the quotas lets through in a window. `hold` makes a rate of a number in flight.
fn max_nominal(quotas: &[Quota], window: Micros, hold: Micros) -> u128 {
    let nominal = quotas.iter().map(|quota| {
        let amount = u128::from(rate::nominal(quota, window));
        match rate::period(quota) {
            Some(_) => amount,
            None => amount * u128::from(window.get()) / u128::from(hold.get().max(1)),
        }
    });
    nominal.max().unwrap_or(0)
}

impl SyntheticLoad {
    /// All arrivals in order; refuses more than `most`.
    pub(crate) fn arrivals(&self, max: usize) -> Result<Vec<SimulatedRequest>, CliError> {
        let length = self.length.get();
        let moments: Box<dyn Iterator<Item = u64>> = match self.shape {
            LoadShape::Steady => Box::new(self.even_arrivals(0..length)),
            LoadShape::Burst | LoadShape::Boundary => {
                Box::new(self.bursts().into_iter().flat_map(|burst| self.even_arrivals(burst)))
            }
            LoadShape::Ramp => Box::new(self.ramp_arrivals()),
            LoadShape::OnOff => Box::new(self.on_off_arrivals()),
        };
        let arrival = |at| SimulatedRequest { at: Micros::new(at), cost: self.cost };
        let moments = moments.take_while(|at| *at < length).take(max + 1);
        let arrivals: Vec<_> = moments.map(arrival).collect();
        match arrivals.len() {
            0 => {
                let fix = match self.shape {
                    LoadShape::Ramp => "give a higher --rate or a longer --for",
                    _ => "give a longer --for",
                };
                Err(CliError::input(format!("nothing arrives: {self}\n{fix}")))
            }
            many if many > max => {
                let fix = "give a lower --rate, a shorter --for or fewer quotas";
                Err(CliError::input(format!("more than {max} requests for each quota: {self}\n{fix}")))
            }
            _ => Ok(arrivals),
        }
    }

    /// The bursts of a shape that has one or two, whether or not the load goes on for so long.
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

    /// How long requests arrive without a pause.
    fn burst_length(&self) -> u64 {
        (self.window.get() / 4).max(1)
    }

    /// The last end of a window in the first half, or the first of all.
    fn boundary(&self) -> u64 {
        let window = self.window.get();
        (self.length.get() / 2 / window).max(1) * window
    }

    /// Moments at the rate; each is exact, so none drifts.
    fn even_arrivals(&self, phase: Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let (amount, period) = (u128::from(self.rate.amount().max(1)), u128::from(self.rate.period().get()));
        (0_u128..)
            .map(move |index| u128::from(phase.start) + index * period / amount)
            .take_while(move |at| *at < u128::from(phase.end))
            .filter_map(|at| u64::try_from(at).ok())
    }

    /// Moments at the rate, which stands still while nothing arrives.
    fn on_off_arrivals(&self) -> impl Iterator<Item = u64> + use<> {
        let burst = self.burst_length();
        self.even_arrivals(0..self.length.get()).map(move |on| on / burst * 2 * burst + on % burst)
    }

    /// Moments that get denser: the area under a rising line is a square.
    fn ramp_arrivals(&self) -> impl Iterator<Item = u64> + use<> {
        let length = self.length.get() as f64;
        let count = self.rate.amount() as f64 * length / self.rate.period().get() as f64 / 2.0;
        let total = count as u64;
        (0..total).map(move |index| (length * ((index as f64 + 0.5) / count).sqrt()) as u64)
    }
}

/// What the load is, in one line.
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

/// A number of requests in words.
pub(crate) fn requests_text(count: u128) -> String {
    if count == 1 { "1 request".into() } else { format!("{count} requests") }
}
