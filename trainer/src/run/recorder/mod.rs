//! [`SpanRecorder`]: the spans of the running entry point, from which a profile is built.

mod settings;

use std::time::{Duration, Instant};

use tch::{Cuda, Device};

use crate::libtorch;
use crate::moments::tree;
use crate::phase::Phase;
pub(crate) use settings::{ProfileSettings, Report};

/// The maximum number of spans kept for a trace.
const MAX_EVENTS: usize = 1_000_000;

/// Identifies what a span measures. The keys are, in order: the entry point, the wait for data, the
/// operations by row in the dispatch table, the hooks by index in that table, and the named modules
/// in the order of their first calls.
pub(crate) type Key = usize;

pub(crate) const ENTRY: Key = 0;
pub(crate) const DATA: Key = 1;
pub(crate) const KEYS_BEFORE_MOMENTS: usize = 2;

const PHASES: usize = Phase::ALL.len();

/// Returns the slot of a key in a phase: the index of its [`Stats`].
fn slot(key: Key, phase: Phase) -> usize {
    key * PHASES + phase as usize
}

/// Converts a duration to nanoseconds.
#[inline]
pub(crate) fn nanos(duration: Duration) -> u64 {
    duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos())
}

/// Returns the key and the phase of a slot.
pub(crate) fn key_of(slot: usize) -> (Key, Phase) {
    (slot / PHASES, Phase::ALL[slot % PHASES])
}

/// The statistics of all spans of one key in one phase, with times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) calls: u64,
    pub(crate) total: u64,
    pub(crate) own: u64,
    pub(crate) max: u64,
    /// The number of waits for the GPU in the spans, excluding the spans inside them.
    pub(crate) waits: u64,
    /// The number of open spans. Only the outermost one adds to the total.
    open: u32,
}

/// A span that has not ended.
#[derive(Clone)]
struct Open {
    slot: usize,
    start: Instant,
    /// The total duration of the spans directly inside this one, in nanoseconds.
    inside: u64,
    /// The number of waits for the GPU before this span began.
    waits: u64,
    /// The number of waits in the spans directly inside this one.
    waits_inside: u64,
    /// Whether this span is the body of an operation, inside the operation's own span. Its time
    /// then counts as self time of the operation.
    is_body: bool,
    /// The index of this span's event, if the event is kept.
    event: Option<usize>,
}

/// A span that is kept for a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) slot: u32,
    pub(crate) start: Instant,
    /// The duration in nanoseconds, or 0 until the span ends.
    pub(crate) duration: u64,
}

/// Records the spans of an entry point.
pub(crate) struct SpanRecorder {
    /// The name of the entry point's operation; empty before the first entry point.
    pub(crate) entry: &'static str,
    pub(crate) began: Instant,
    pub(crate) stats: Vec<Stats>,
    open: Vec<Open>,
    pub(crate) events: Vec<Event>,
    pub(crate) dropped: u64,
    /// The index of the CUDA device to synchronize with at both ends of each span.
    synchronizes: Option<i64>,
    /// Whether waits for the GPU are counted.
    pub(crate) counts_waits: bool,
    pub(crate) settings: ProfileSettings,
}

impl SpanRecorder {
    /// Creates a recorder for a trainer with this number of hooks and a task on this device.
    pub(crate) fn new(hooks: usize, settings: ProfileSettings, device: Device) -> Self {
        let keys = KEYS_BEFORE_MOMENTS + tree::moments().len() + hooks;
        SpanRecorder {
            entry: "",
            began: Instant::now(),
            stats: vec![Stats::default(); keys * PHASES],
            open: Vec::new(),
            events: Vec::new(),
            dropped: 0,
            synchronizes: match device {
                Device::Cuda(index) if settings.synchronizes => i64::try_from(index).ok(),
                _ => None,
            },
            counts_waits: matches!(device, Device::Cuda(_)) && libtorch::count_waits(),
            settings,
        }
    }

    /// Returns the statistics of a key in each phase.
    pub(crate) fn of(&self, key: Key) -> &[Stats] {
        self.stats.get(key * PHASES..(key + 1) * PHASES).unwrap_or_default()
    }

    /// Returns what has been recorded so far, except for the events, as if the open spans ended
    /// now.
    pub(crate) fn so_far(&self) -> SpanRecorder {
        let open = self.open.iter().map(|span| Open { event: None, ..span.clone() });
        let mut so_far = SpanRecorder {
            entry: self.entry,
            began: self.began,
            stats: self.stats.clone(),
            open: open.collect(),
            events: Vec::new(),
            dropped: self.dropped + self.events.len() as u64,
            synchronizes: self.synchronizes,
            counts_waits: self.counts_waits,
            settings: ProfileSettings::default(),
        };
        while !so_far.open.is_empty() {
            so_far.end();
        }
        so_far
    }

    /// Resets the recorder for this entry point.
    pub(crate) fn restart(&mut self, entry: &'static str) {
        self.entry = entry;
        self.stats.fill(Stats::default());
        self.open.clear();
        self.events.clear();
        self.dropped = 0;
        self.began = Instant::now();
    }

    /// Reads the clock, which is most of the cost of a span. First synchronizes with the device if
    /// requested.
    #[inline]
    fn now(&self) -> Instant {
        if let Some(device) = self.synchronizes {
            Cuda::synchronize(device);
        }
        Instant::now()
    }

    /// Returns the number of waits for the GPU so far.
    #[inline]
    fn waits(&self) -> u64 {
        if self.counts_waits { libtorch::waits() } else { 0 }
    }

    /// Begins a span.
    #[inline]
    pub(crate) fn begin(&mut self, key: Key, phase: Phase, is_body: bool) {
        let slot = slot(key, phase);
        let start = self.now();
        if slot >= self.stats.len() {
            self.stats.resize(slot + PHASES, Stats::default()); // a module's first call
        }
        let event = if is_body {
            None
        } else {
            self.stats[slot].open += 1;
            self.keep(slot, start)
        };
        // After the clock was read, so that a synchronized profile does not count its own waits.
        let waits = self.waits();
        self.open.push(Open { slot, start, inside: 0, waits, waits_inside: 0, is_body, event });
    }

    /// Keeps a span for a trace and returns the index of its event, or `None` if the trace is full.
    /// Called when the span begins, so that the spans around a kept span are kept too.
    fn keep(&mut self, slot: usize, start: Instant) -> Option<usize> {
        if self.events.len() == MAX_EVENTS {
            self.dropped += 1;
            return None;
        }
        self.events.push(Event { slot: u32::try_from(slot).unwrap_or(u32::MAX), start, duration: 0 });
        Some(self.events.len() - 1)
    }

    /// Ends the innermost span.
    #[inline]
    pub(crate) fn end(&mut self) {
        let waits = self.waits();
        let end = self.now();
        let Some(open) = self.open.pop() else { return };
        let Open { slot, start, inside, waits: waits_before, waits_inside, is_body, event } = open;
        let duration = nanos(end.duration_since(start));
        let waited = waits - waits_before;
        if let Some(outer) = self.open.last_mut() {
            outer.inside += duration;
            outer.waits_inside += waited;
        }
        let stats = &mut self.stats[slot];
        stats.own += duration - inside;
        stats.waits += waited - waits_inside;
        if is_body {
            return;
        }
        stats.open -= 1;
        stats.calls += 1;
        stats.max = stats.max.max(duration);
        if stats.open == 0 {
            stats.total += duration;
        }
        if let Some(event) = event {
            self.events[event].duration = duration;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_times_add_up_and_recursion_counts_once() {
        let mut recorder = SpanRecorder::new(0, ProfileSettings::default(), Device::Cpu);
        recorder.restart("fit");
        recorder.begin(ENTRY, Phase::Train, false);
        for _ in 0..100 {
            recorder.begin(KEYS_BEFORE_MOMENTS, Phase::Train, false);
            recorder.begin(KEYS_BEFORE_MOMENTS, Phase::Train, true);
            recorder.begin(KEYS_BEFORE_MOMENTS, Phase::Train, false);
            recorder.begin(DATA, Phase::Valid, false);
            (0..4).for_each(|_| recorder.end());
        }
        recorder.end();
        let of = |key, phase| recorder.stats[slot(key, phase)];
        let entry = of(ENTRY, Phase::Train);
        let operation = of(KEYS_BEFORE_MOMENTS, Phase::Train);
        assert_eq!(recorder.stats.iter().map(|stats| stats.own).sum::<u64>(), entry.total);
        assert_eq!((entry.calls, operation.calls, of(DATA, Phase::Valid).calls), (1, 200, 100));
        assert!(operation.total <= entry.total, "the inner spans are within the outer ones");
        assert_eq!(operation.total, operation.own + of(DATA, Phase::Valid).total);
        assert_eq!(recorder.events.len(), 301);
    }

    #[test]
    fn times_recorded_so_far_add_up_and_open_spans_stay_open() {
        let mut recorder = SpanRecorder::new(0, ProfileSettings::default(), Device::Cpu);
        recorder.restart("fit");
        recorder.begin(ENTRY, Phase::Train, false);
        recorder.begin(KEYS_BEFORE_MOMENTS, Phase::Train, false);
        let so_far = recorder.so_far();
        let entry = so_far.stats[slot(ENTRY, Phase::Train)];
        assert_eq!(so_far.stats.iter().map(|stats| stats.own).sum::<u64>(), entry.total);
        assert_eq!((entry.calls, so_far.open.len(), so_far.dropped), (1, 0, 2));
        recorder.end();
        recorder.end();
        assert_eq!(recorder.stats[slot(ENTRY, Phase::Train)].calls, 1);
    }

    /// A single test, because waits are counted for the entire process.
    #[test]
    fn a_wait_counts_for_the_innermost_span_of_a_task_on_a_gpu() {
        let [mut on_gpu, mut on_cpu] = [Device::Cuda(0), Device::Cpu].map(|device| {
            let mut recorder = SpanRecorder::new(0, ProfileSettings::default(), device);
            recorder.restart("fit");
            recorder
        });
        assert!(on_gpu.counts_waits && !on_cpu.counts_waits);
        for recorder in [&mut on_gpu, &mut on_cpu] {
            recorder.begin(ENTRY, Phase::Train, false);
            libtorch::imitate_wait();
            recorder.begin(DATA, Phase::Train, false);
            libtorch::imitate_wait();
            libtorch::imitate_wait();
            recorder.end();
            libtorch::imitate_wait();
            recorder.end();
        }
        let waits = |recorder: &SpanRecorder, key| recorder.stats[slot(key, Phase::Train)].waits;
        assert_eq!((waits(&on_gpu, ENTRY), waits(&on_gpu, DATA)), (2, 2));
        assert_eq!((waits(&on_cpu, ENTRY), waits(&on_cpu, DATA)), (0, 0));
    }

    #[test]
    fn the_first_million_spans_are_kept_with_their_parents() {
        let mut recorder = SpanRecorder::new(0, ProfileSettings::default(), Device::Cpu);
        recorder.restart("fit");
        recorder.begin(ENTRY, Phase::Train, false);
        for _ in 0..MAX_EVENTS {
            recorder.begin(DATA, Phase::Train, false);
            recorder.end();
        }
        recorder.end();
        assert_eq!((recorder.events.len(), recorder.dropped), (MAX_EVENTS, 1));
        let last = recorder.events[MAX_EVENTS - 1];
        let first = recorder.events[0];
        assert!(first.duration >= nanos(last.start - first.start) + last.duration);
        assert_eq!(recorder.stats[slot(DATA, Phase::Train)].calls, MAX_EVENTS as u64);
    }
}
