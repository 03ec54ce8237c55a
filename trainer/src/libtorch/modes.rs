//! The modes of libtorch: deterministic algorithms, anomaly detection, gradient recording.

use std::sync::{Mutex, PoisonError};

use trainer_sys::{ModeFlags, trainer_modes, trainer_record_gradients, trainer_set_modes};

/// Reference counts of active requests per mode, over all threads, and the flags to restore after
/// the last one.
#[derive(Default)]
struct ModeRequests {
    deterministic: usize,
    detect_anomaly: usize,
    before: ModeFlags,
}

static MODE_REQUESTS: Mutex<ModeRequests> = Mutex::new(ModeRequests {
    deterministic: 0,
    detect_anomaly: 0,
    before: ModeFlags {
        deterministic: false,
        deterministic_warns_only: false,
        detects_anomalies: false,
        checks_nan: false,
    },
});

/// Requests modes of libtorch for as long as the value lives.
pub(crate) struct Modes {
    deterministic: bool,
    detect_anomaly: bool,
}

impl Modes {
    pub(crate) fn begin(deterministic: bool, detect_anomaly: bool) -> Self {
        let modes = Modes { deterministic, detect_anomaly };
        modes.change(|count| count + 1);
        modes
    }

    /// Changes the counts of the requested modes, and sets libtorch's flags accordingly.
    fn change(&self, step: impl Fn(usize) -> usize) {
        if !(self.deterministic || self.detect_anomaly) {
            return;
        }
        let mut requests = MODE_REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.deterministic + requests.detect_anomaly == 0 {
            // SAFETY: the call only reads flags of libtorch.
            requests.before = unsafe { trainer_modes() };
        }
        if self.deterministic {
            requests.deterministic = step(requests.deterministic);
        }
        if self.detect_anomaly {
            requests.detect_anomaly = step(requests.detect_anomaly);
        }
        let mut flags = requests.before;
        if requests.deterministic > 0 {
            flags.deterministic = true;
            flags.deterministic_warns_only = false;
        }
        if requests.detect_anomaly > 0 {
            flags.detects_anomalies = true;
            flags.checks_nan = true;
        }
        // SAFETY: the call only sets flags of libtorch.
        unsafe { trainer_set_modes(flags) };
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        self.change(|count| count.saturating_sub(1));
    }
}

/// Enables gradient recording on this thread, and restores the previous mode when dropped.
pub(crate) struct GradModeGuard(bool);

impl GradModeGuard {
    pub(crate) fn recorded() -> Self {
        GradModeGuard(GradModeGuard::record())
    }

    /// Enables gradient recording without restoring it later. Returns whether it was enabled
    /// before.
    pub(crate) fn record() -> bool {
        // SAFETY: the call only sets a flag of this thread.
        unsafe { trainer_record_gradients(true) }
    }
}

impl Drop for GradModeGuard {
    fn drop(&mut self) {
        // SAFETY: the call only sets a flag of this thread.
        unsafe { trainer_record_gradients(self.0) };
    }
}
