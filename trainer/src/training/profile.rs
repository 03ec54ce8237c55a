//! Profiles: the builder's settings, and access to the last profile.

use super::builder::TrainerBuilder;
use super::task::Task;
use super::trainer::Trainer;
use crate::profile::Profile;

/// # Profiles
impl<T: Task> TrainerBuilder<T> {
    /// Whether the trainer measures how long each operation and each hook takes, and how long it
    /// waits for data. [`Trainer::profile`](crate::Trainer::profile) returns the result. Defaults
    /// to `false`, or to `true` if the environment variable `TRAINER_PROFILE` is set.
    ///
    /// Each measurement is recorded as a span, which takes about 0.1 µs. Each of the first
    /// 1,000,000 spans of an entry point takes 24 bytes of memory. Later spans count toward the
    /// totals, but are not in the trace.
    ///
    /// `TRAINER_PROFILE=table` prints the profile of each entry point on standard error when the
    /// entry point ends. `TRAINER_PROFILE=<path>.json` writes the profile to that file as
    /// [JSON](crate::profile::Profile::json), and `TRAINER_PROFILE=<path>.trace.json` as a [Chrome
    /// trace](crate::profile::Profile::chrome_trace). If the file exists, the profile is written to
    /// a new file instead, with a number in its name: `<path>-2.json`. Only rank 0 prints or writes
    /// its profile.
    pub fn profile(mut self, profile: bool) -> Self {
        self.profile.is_on = profile;
        self
    }

    /// Whether the trainer waits for the task's device at both ends of each span of the profile, so
    /// that the time of a GPU's kernels is attributed to the span that queues them. Implies
    /// [`profile`](TrainerBuilder::profile). Defaults to `false`.
    ///
    /// The run takes longer, because the host no longer prepares kernels while the device computes.
    /// On the CPU, this setting makes no difference.
    pub fn profile_synchronized(mut self, synchronized: bool) -> Self {
        self.profile.synchronizes = synchronized;
        self
    }

    /// Whether each entry point, operation, module call, hook and wait for data is also a span of
    /// the crate `tracing`, with the target `trainer`. Implies
    /// [`profile`](TrainerBuilder::profile). Defaults to `false`. Requires the cargo feature
    /// `tracing`.
    ///
    /// The spans are named `entry` and `operation` (level `INFO`), and `module`, `hook` and `data`
    /// (level `DEBUG`). All have the field `phase`; all except `data` have the field `name`; a hook
    /// also has the field `moment`. Events and spans that the task and the hooks create are inside
    /// these spans.
    #[cfg(feature = "tracing")]
    pub fn tracing(mut self, tracing: bool) -> Self {
        self.profile.traces = tracing;
        self
    }
}

/// # Profiles
impl<T: Task> Trainer<T> {
    /// Returns the profile of the last entry point, even if it failed, was cancelled or panicked.
    /// Returns `None` if [`profile`](TrainerBuilder::profile) is not set, or if no entry point has
    /// run.
    ///
    /// If a signal may end the program, set `TRAINER_PROFILE`: the profile is then printed or
    /// written before the program exits.
    #[must_use]
    pub fn profile(&self) -> Option<Profile> {
        Profile::of(self.run.layers(), &self.run.hooks().table, self.run.modules())
    }
}
