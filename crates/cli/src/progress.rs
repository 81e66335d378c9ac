//! A progress bar on standard error, if it is a terminal.

use std::io::{self, IsTerminal, Write};
use tidegate::Clock;
use tidegate_core::Micros;
use tidegate_replay::ReplayProgress;

/// A progress bar.
pub(crate) struct ProgressBar {
    /// `None` without a terminal.
    state: Option<ProgressState>,
}

struct ProgressState {
    clock: Clock,
    started: Micros,
    next_draw: Micros,
}

/// The minimum interval between updates.
const DRAW_INTERVAL: Micros = Micros::new(100_000);
const BAR_WIDTH: usize = 30;

impl ProgressBar {
    pub(crate) fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        let state = is_terminal.then(|| {
            let clock = Clock::system();
            let started = clock.now();
            ProgressState { clock, started, next_draw: started.saturating_add(DRAW_INTERVAL) }
        });
        Self { state }
    }

    /// Shows the progress of a replay.
    pub(crate) fn show(&mut self, progress: ReplayProgress) {
        self.draw(|since| progress_line(progress, since));
    }

    /// Shows a count of a total.
    pub(crate) fn show_count(&mut self, done: u64, all: u64) {
        self.draw(|_| bar_text(done, all));
    }

    fn draw(&mut self, line: impl FnOnce(Micros) -> String) {
        let Some(ProgressState { clock, started, next_draw: next }) = &mut self.state else { return };
        let now = clock.now();
        if now < *next {
            return;
        }
        *next = now.saturating_add(DRAW_INTERVAL);
        // Ignore a closed standard error.
        let _ = write!(io::stderr(), "\r\x1b[K{}", line(now.saturating_sub(*started)));
    }

    /// Removes the bar from the terminal.
    pub(crate) fn clear(&mut self) {
        if self.state.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn progress_line(progress: ReplayProgress, since: Micros) -> String {
    let ReplayProgress { requests, bytes_read: read, total_bytes: size } = progress;
    let rate = u128::from(requests) * 1_000_000 / u128::from(since.get().max(1));
    match size {
        Some(size) if size > 0 => format!("{}  {requests} requests, {rate}/s", bar_text(read, size)),
        _ => format!("{} MB  {requests} requests, {rate}/s", read >> 20),
    }
}

fn bar_text(done: u64, all: u64) -> String {
    let part = (done as f64 / all.max(1) as f64).clamp(0.0, 1.0);
    let full = (part * BAR_WIDTH as f64) as usize;
    let (done, rest) = ("━".repeat(full), "─".repeat(BAR_WIDTH - full));
    format!("{done}{rest} {:3.0} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_shows_percent_and_rate() {
        let half = ReplayProgress { requests: 3_000, bytes_read: 50, total_bytes: Some(100) };
        let bar = progress_line(half, Micros::from_secs(2));
        assert!(bar.contains(" 50 %  3000 requests, 1500/s"), "{bar}");
        let stream = ReplayProgress { total_bytes: None, bytes_read: 5 << 20, ..half };
        assert_eq!(bar_text(1, 4), format!("{}{}  25 %", "━".repeat(7), "─".repeat(23)));
        assert!(bar_text(9, 4).ends_with(" 100 %"));
        assert_eq!(progress_line(stream, Micros::from_secs(2)), "5 MB  3000 requests, 1500/s");
    }
}
