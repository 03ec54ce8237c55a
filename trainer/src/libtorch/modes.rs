//! The modes of libtorch: deterministic algorithms, anomaly detection, cuDNN benchmarks, the
//! precision of matrix products, and gradient recording.

use std::sync::{Mutex, PoisonError};

use trainer_sys::{ModeFlags, trainer_modes, trainer_record_gradients, trainer_set_modes};

/// The precision of products of `Float` matrices: see
/// [`matmul_precision`](crate::TrainerBuilder::matmul_precision).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[non_exhaustive]
pub enum MatmulPrecision {
    /// The factors are rounded to bf16, with a mantissa of 7 bits, if that is faster; otherwise
    /// like `High`.
    Medium,
    /// The factors are rounded to TF32, with a mantissa of 10 bits, if that is faster.
    High,
    /// The factors keep the mantissa of `Float`, which has 23 bits.
    Highest,
}

/// The modes that a run needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModeRequest {
    pub(crate) deterministic: bool,
    pub(crate) detect_anomaly: bool,
    pub(crate) cudnn_benchmark: bool,
    pub(crate) matmul_precision: Option<MatmulPrecision>,
}

impl ModeRequest {
    /// Returns libtorch's flags with the requested modes enabled.
    fn added_to(self, mut flags: ModeFlags) -> ModeFlags {
        if self.deterministic {
            flags.deterministic = true;
            flags.deterministic_warns_only = false;
            // A benchmark can choose a different algorithm in each process.
            flags.benchmarks_cudnn = false;
        }
        if self.detect_anomaly {
            flags.detects_anomalies = true;
            flags.checks_nan = true;
        }
        if self.cudnn_benchmark {
            flags.benchmarks_cudnn = true;
        }
        match self.matmul_precision {
            None => {}
            Some(MatmulPrecision::Highest) => flags.matmul_precision = 0,
            Some(MatmulPrecision::High) => flags.matmul_precision = 1,
            Some(MatmulPrecision::Medium) => flags.matmul_precision = 2,
        }
        flags
    }
}

/// The active requests of all threads, each with its number, in the order in which they began. Also
/// contains the flags to restore when the last request ends.
struct Active {
    requests: Vec<(u64, ModeRequest)>,
    next: u64,
    before: Option<ModeFlags>,
}

static ACTIVE: Mutex<Active> = Mutex::new(Active { requests: Vec::new(), next: 0, before: None });

/// Requests modes of libtorch for as long as the value lives. If two requests contradict each
/// other, the later one applies.
pub(crate) struct Modes(Option<u64>);

impl Modes {
    pub(crate) fn begin(request: ModeRequest) -> Self {
        if request == ModeRequest::default() {
            return Modes(None);
        }
        let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
        let number = active.next;
        active.next += 1;
        active.requests.push((number, request));
        active.apply();
        Modes(Some(number))
    }
}

impl Active {
    /// Sets libtorch's flags to those that the active requests need.
    fn apply(&mut self) {
        // SAFETY: the call only reads flags of libtorch.
        let before = *self.before.get_or_insert_with(|| unsafe { trainer_modes() });
        let flags = self.requests.iter().fold(before, |flags, (_, request)| request.added_to(flags));
        // SAFETY: the call only sets flags of libtorch.
        unsafe { trainer_set_modes(flags) };
        self.before = (!self.requests.is_empty()).then_some(before);
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        let Some(own) = self.0 else { return };
        let mut active = ACTIVE.lock().unwrap_or_else(PoisonError::into_inner);
        active.requests.retain(|(number, _)| *number != own);
        active.apply();
    }
}

/// Enables gradient recording on this thread, and restores the previous mode when dropped.
pub(crate) struct GradModeGuard(bool);

impl GradModeGuard {
    pub(crate) fn recorded() -> Self {
        GradModeGuard(GradModeGuard::record())
    }

    /// Enables gradient recording, and does not restore the previous mode later. Returns whether
    /// recording was already enabled.
    pub(crate) fn record() -> bool {
        // SAFETY: the call only sets a flag of this thread.
        unsafe { trainer_record_gradients(true) }
    }
}

/// Whether gradients are recorded on this thread.
#[derive(Clone, Copy)]
pub(crate) struct GradMode(bool);

impl GradMode {
    /// Returns the current mode.
    pub(crate) fn current() -> Self {
        // Dropping the guard restores the mode.
        GradMode(GradModeGuard::recorded().0)
    }

    /// Sets this mode.
    pub(crate) fn set(self) {
        drop(GradModeGuard(self.0));
    }
}

impl Drop for GradModeGuard {
    fn drop(&mut self) {
        // SAFETY: the call only sets a flag of this thread.
        unsafe { trainer_record_gradients(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_requests_applies_until_it_ends() {
        let none = ModeFlags::default();
        let high = ModeRequest { matmul_precision: Some(MatmulPrecision::High), ..ModeRequest::default() };
        let medium =
            ModeRequest { matmul_precision: Some(MatmulPrecision::Medium), ..ModeRequest::default() };
        let benchmark = ModeRequest { cudnn_benchmark: true, ..ModeRequest::default() };
        let deterministic = ModeRequest { deterministic: true, ..ModeRequest::default() };
        let precision = |requests: &[ModeRequest]| {
            requests.iter().fold(none, |flags, request| request.added_to(flags)).matmul_precision
        };
        assert_eq!(precision(&[high, benchmark, medium]), 2);
        assert_eq!(precision(&[medium, benchmark, high]), 1);
        assert_eq!(precision(&[high, benchmark]), 1);
        let both = deterministic.added_to(benchmark.added_to(none));
        assert!(both.deterministic && !both.benchmarks_cudnn);
    }
}
