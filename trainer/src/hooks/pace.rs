//! Measures how fast a count grows, and estimates the remaining time.

use std::time::Instant;

/// Measures how fast a count has grown since the clock was started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    began: Instant,
    before: u64,
}

impl Pace {
    /// Starts the clock at this count.
    pub(super) fn start(count: u64) -> Self {
        Pace { began: Instant::now(), before: count }
    }

    /// Returns the mean growth of the count per second since the start.
    pub(super) fn per_second(&self, count: u64) -> f64 {
        count.saturating_sub(self.before) as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }

    /// Returns the seconds until the count reaches `total` at the pace so far; infinite if the
    /// count has not grown.
    pub(super) fn remaining(&self, count: u64, total: u64) -> f64 {
        match total.saturating_sub(count) {
            0 => 0.0,
            left => left as f64 / self.per_second(count),
        }
    }
}
