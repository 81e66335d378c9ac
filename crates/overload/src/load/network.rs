//! The share of the network throughput that is in use.

use super::{
    LoadSource,
    host::{self, HostPaths},
};
use tidegate_core::{Micros, Percent};

/// Measures the bytes that the network interfaces of this machine send or receive, whichever is more, as a share of their
/// capacity. The loopback interface does not count. The first reading only sets the baseline.
#[derive(Debug)]
pub struct NetworkLoad {
    host: HostPaths,
    bytes_per_second: u64,
    last: Option<(Micros, InterfaceBytes)>,
}

/// Bytes since the start of the machine, over all interfaces.
#[derive(Clone, Copy, Debug, Default)]
struct InterfaceBytes {
    received: u64,
    sent: u64,
}

impl NetworkLoad {
    /// Creates a source for this machine, whose network has this capacity in each direction.
    pub fn new(bytes_per_second: u64) -> Self {
        Self::with_host(HostPaths::local(), bytes_per_second)
    }

    /// Creates a source that reads the files of `host`.
    pub fn with_host(host: HostPaths, bytes_per_second: u64) -> Self {
        Self { host, bytes_per_second, last: None }
    }

    fn read_bytes(&self) -> Option<InterfaceBytes> {
        let text = host::read_text(self.host.proc("net/dev"))?;
        let mut total = InterfaceBytes::default();
        // `eth0: 1234 …`: received bytes are the first number, sent bytes the ninth.
        for (name, counters) in text.lines().filter_map(|line| line.split_once(':')) {
            if name.trim() == "lo" {
                continue;
            }
            let mut counters = counters.split_whitespace().map(|number| number.parse::<u64>().ok());
            let received = counters.next().flatten()?;
            let sent = counters.nth(7).flatten()?;
            total.received = total.received.saturating_add(received);
            total.sent = total.sent.saturating_add(sent);
        }
        Some(total)
    }
}

impl LoadSource for NetworkLoad {
    fn read(&mut self, now: Micros) -> Option<Percent> {
        let bytes = self.read_bytes()?;
        let (at, before) = self.last.replace((now, bytes))?;
        let elapsed = now.saturating_sub(at).get();
        // An interface that was removed takes its counters with it.
        let received = bytes.received.saturating_sub(before.received);
        let sent = bytes.sent.saturating_sub(before.sent);
        let capacity = u128::from(self.bytes_per_second) * u128::from(elapsed) / 1_000_000;
        (elapsed > 0).then(|| {
            Percent::from_ratio(received.max(sent), u64::try_from(capacity).unwrap_or(u64::MAX).max(1))
        })
    }
}
