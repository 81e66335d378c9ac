//! The period and the nominal rate of a quota.

use tidegate_core::{Micros, Quota, Rate};

/// The period of a quota; `None` for a concurrency limit and a total.
pub(crate) fn period(quota: &Quota) -> Option<Micros> {
    quota.rate().map(Rate::period)
}

/// The amount that the rate of a quota allows in a window of this length, without bursts. For a concurrency limit, the maximum
/// in flight; for a total, all of it.
pub(crate) fn nominal(quota: &Quota, window: Micros) -> u64 {
    let Some(rate) = quota.rate() else { return quota.limit() };
    let scaled = u128::from(rate.amount()) * u128::from(window.get()) / u128::from(rate.period().get());
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_and_rate_of_every_algorithm() {
        for (text, seconds) in [
            ("100/min", 60),
            ("100/min burst 20", 60),
            ("100 per 10s fixed-window", 10),
            ("100/min sliding-window", 60),
            ("100/h sliding-strict 60", 3_600),
            ("100/s sliding-log", 1),
            ("100/d leaky-bucket queue 5 delay 2", 86_400),
            ("100/s smooth burst 7", 1),
            ("100/s warm-up 4s cold 3", 1),
            ("100B/s", 1),
        ] {
            let quota: Quota = text.parse().unwrap();
            let period = period(&quota);
            assert_eq!(period, Some(Micros::from_secs(seconds)), "{text}");
            assert_eq!(nominal(&quota, period.unwrap()), 100, "{text}");
        }
        let fast: Quota = "1MB/s smooth".parse().unwrap();
        assert_eq!(nominal(&fast, Micros::from_secs(60)), 60_000_000);
        let concurrency: Quota = "3 at once".parse().unwrap();
        assert_eq!((period(&concurrency), nominal(&concurrency, Micros::from_secs(1))), (None, 3));
        let total: Quota = "500 total".parse().unwrap();
        assert_eq!((period(&total), nominal(&total, Micros::from_secs(1))), (None, 500));
    }
}
