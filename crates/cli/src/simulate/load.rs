//! Loads that are made up: deterministic shapes of arrivals, sized to the quotas that they try.

use super::{pace, time};
use crate::failure::Failure;
use clap::ValueEnum;
use std::{fmt, ops::Range};
use tidegate_core::{Kind, Micros, Quota, Rate};

/// More decisions than this say nothing that fewer do not.
pub(crate) const MOST_DECISIONS: usize = 10_000_000;

/// One request of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When it asks.
    pub(crate) at: Micros,
    /// What it asks for.
    pub(crate) cost: u64,
}

/// How arrivals are spread over time. Lengths are parts of the window, so that a shape fits any quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
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

impl Shape {
    /// The rate that shows what a quota does, in tenths of the quota's own.
    fn tenths(self) -> u64 {
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
pub(crate) struct Load {
    /// How arrivals are spread.
    pub(crate) shape: Shape,
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
pub(crate) fn parse_rate(text: &str) -> Result<Rate, Failure> {
    let quota: Quota = text.parse().map_err(|error| Failure::input(format!("--rate: {error}")))?;
    match (quota.kind(), pace::period(&quota)) {
        (Kind::TokenBucket(_), Some(period)) => Ok(Rate::new(pace::nominal(&quota, period), period)),
        _ => Err(Failure::input(format!("--rate: `{text}` is not a rate\nwrite `200/min` or `5 per 10s`"))),
    }
}

/// What a request costs when nobody says: one, but a share of the quota where that counts in the millions.
pub(crate) fn default_cost(quotas: &[Quota], window: Micros) -> u64 {
    let nominal = quotas.iter().map(|quota| pace::nominal(quota, window)).max().unwrap_or(0);
    if nominal > 100_000 { nominal / 1_000 } else { 1 }
}

/// The rate that shows what the largest of the quotas does. `hold` makes a rate of a number in flight.
pub(crate) fn default_rate(shape: Shape, quotas: &[Quota], window: Micros, hold: Micros, cost: u64) -> Rate {
    let nominal = quotas.iter().map(|quota| {
        let amount = u128::from(pace::nominal(quota, window));
        match pace::period(quota) {
            Some(_) => amount,
            None => amount * u128::from(window.get()) / u128::from(hold.get().max(1)),
        }
    });
    let tenths = nominal.max().unwrap_or(0) * u128::from(shape.tenths());
    let requests = tenths.div_ceil(10 * u128::from(cost.max(1)));
    Rate::new(u64::try_from(requests).unwrap_or(u64::MAX).max(1), window)
}

impl Load {
    /// All arrivals in order; refuses more than `most`.
    pub(crate) fn arrivals(&self, most: usize) -> Result<Vec<Arrival>, Failure> {
        let moments: Box<dyn Iterator<Item = u64>> = match self.shape {
            Shape::Ramp => Box::new(self.ramp()),
            _ => Box::new(self.phases().flat_map(|phase| self.evenly(phase))),
        };
        let arrival = |at| Arrival { at: Micros::new(at), cost: self.cost };
        let arrivals: Vec<_> = moments.take(most + 1).map(arrival).collect();
        match arrivals.len() {
            0 => Err(Failure::input(format!(
                "nothing arrives: {} in {} is less than one request\ngive a higher --rate or a longer --for",
                self.rate, self.length
            ))),
            many if many > most => Err(Failure::input(format!(
                "{} for {} is more than {most} requests for each quota\ngive a lower --rate or a shorter --for",
                self.rate, self.length
            ))),
            _ => Ok(arrivals),
        }
    }

    /// The stretches of time in which requests arrive.
    fn phases(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (length, window, burst) = (self.length.get(), self.window.get(), self.burst());
        let (starts, each): (Box<dyn Iterator<Item = u64>>, u64) = match self.shape {
            Shape::Steady | Shape::Ramp => (Box::new([0].into_iter()), length),
            Shape::Burst => (Box::new([window / 2].into_iter()), burst),
            Shape::Boundary => {
                let (boundary, gap) = (self.boundary(), window / 30);
                (Box::new([boundary - gap - burst, boundary + gap].into_iter()), burst)
            }
            Shape::OnOff => {
                let cycle = usize::try_from(2 * burst).unwrap_or(usize::MAX);
                (Box::new((0..length).step_by(cycle)), burst)
            }
        };
        starts.map(move |start| start..(start + each).min(length))
    }

    /// How long requests arrive without a pause.
    fn burst(&self) -> u64 {
        (self.window.get() / 4).max(1)
    }

    /// The end of a window that is nearest to the middle.
    fn boundary(&self) -> u64 {
        let window = self.window.get();
        (self.length.get() / 2 / window).max(1) * window
    }

    /// Moments at the rate; each is exact, so none drifts.
    fn evenly(&self, phase: Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let (amount, period) = (u128::from(self.rate.amount().max(1)), u128::from(self.rate.period().get()));
        (0_u128..)
            .map(move |index| u128::from(phase.start) + index * period / amount)
            .take_while(move |at| *at < u128::from(phase.end))
            .filter_map(|at| u64::try_from(at).ok())
    }

    /// Moments that get denser: the area under a rising line is a square.
    fn ramp(&self) -> impl Iterator<Item = u64> + use<> {
        let length = self.length.get() as f64;
        let count = self.rate.amount() as f64 * length / self.rate.period().get() as f64 / 2.0;
        let whole = count as u64;
        (0..whole).map(move |index| (length * ((index as f64 + 0.5) / count).sqrt()) as u64)
    }
}

/// What the load is, in one line.
impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let burst = time::rough(Micros::new(self.burst()));
        let each = u128::from(self.rate.amount()) * u128::from(self.burst());
        let each = each.div_ceil(u128::from(self.rate.period().get().max(1)));
        match self.shape {
            Shape::Steady => write!(f, "steady: {} for {}", self.rate, self.length)?,
            Shape::Burst => write!(f, "burst: {each} requests within {burst}")?,
            Shape::Boundary => {
                let boundary = Micros::new(self.boundary());
                write!(f, "boundary: two bursts of {each} requests around {boundary}, where a window ends")?;
            }
            Shape::Ramp => write!(f, "ramp: from nothing to {} in {}", self.rate, self.length)?,
            Shape::OnOff => {
                write!(f, "on-off: {} for {burst}, then nothing for {burst}, in turn", self.rate)?;
            }
        }
        if self.cost == 1 { Ok(()) } else { write!(f, ", each at cost {}", self.cost) }
    }
}
