//! A new piece of state needs one `impl Part` and a line in [`with_values`](super::with_values). It
//! is then saved and resumed, separately on each rank, and restored after a trial.

#![allow(clippy::disallowed_methods)]

use std::borrow::Cow;
use std::cell::Cell;
use std::path::{Path, PathBuf};

use tch::Reduction;

use super::part::{Part, Scope, value};
use crate::TrainerBuilder;
use crate::checkpoint::Saved;
use crate::finders::LearningRateFinder;
use crate::hook::Discover;
use crate::hooks::Checkpoint;
use crate::prelude::*;

thread_local! {
    /// The number of losses that the task has computed; `None` in the other tests.
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

pub(crate) struct Count;

impl Part for Count {
    fn name(&self) -> Cow<'static, str> {
        "count".into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }
}

impl Count {
    pub(super) fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("value", &COUNT.get())?;
        Ok(saved)
    }

    pub(super) fn load(&self, saved: &Saved) -> Result<()> {
        COUNT.set(value("count", "value", saved)?);
        Ok(())
    }
}

/// Returns the part; `None` in tests that do not use it.
pub(super) fn added() -> Option<Count> {
    COUNT.get().map(|_| Count)
}

fn builder(folder: &Path) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root() / "fc", 2, 1, nn::LinearConfig::default());
    let task = Supervised::new(vs, net, |pred: &Tensor, target: &Tensor| {
        COUNT.set(COUNT.get().map(|count| count + 1));
        pred.mse_loss(target, Reduction::Mean)
    });
    Trainer::builder(task)
        .optimizer(Sgd::new(0.1))
        .discover(Discover::None)
        .hook(Checkpoint::new(folder))
        .resume(Resume::Auto)
}

/// Two batches of two rows.
fn rows() -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::ones([4, 2], (Kind::Float, Device::Cpu));
    InMemory::new((inputs, Tensor::full([4, 1], 9.0, (Kind::Float, Device::Cpu)))).unwrap().batch_size(2)
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("trainer-parts-{name}-{}", std::process::id()))
}

#[test]
fn a_new_part_is_saved_and_resumed_and_restored_after_a_trial() -> Result<()> {
    let folder = folder("one");
    COUNT.set(Some(0));
    builder(&folder).epochs(1).build()?.fit(&mut rows(), None)?;
    assert_eq!(COUNT.get(), Some(2));
    COUNT.set(Some(100));
    let mut resumed = builder(&folder).epochs(2).build()?;
    resumed.fit(&mut rows(), None)?;
    assert_eq!(COUNT.get(), Some(4));
    resumed.find_lr(&mut rows(), &LearningRateFinder::new().from(1e-6).to(1e-3).steps(20).stop_at(1e6))?;
    assert_eq!(COUNT.get(), Some(4));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

#[cfg(all(feature = "distributed", target_os = "linux"))]
#[test]
fn a_new_part_is_saved_and_resumed_by_each_rank() -> Result<()> {
    use std::sync::mpsc;

    use crate::testing::{Ranks, once};

    let folder = once(|| folder("ranks"));
    Ranks::new(2).run(|| {
        COUNT.set(Some(0));
        let builder = builder(&folder).epochs(1).on::<BeforeSaveCheckpoint>("differ", |cx| {
            COUNT.set(Some(10 + u64::from(cx.rank())));
        });
        builder.build()?.fit(&mut rows(), None).map(drop)
    })?;
    let counts = Ranks::new(2).run(|| {
        COUNT.set(Some(100));
        let (sender, receiver) = mpsc::channel();
        let builder = builder(&folder).epochs(2).allow_inexact_resume(true).on::<AfterLoadCheckpoint>(
            "read",
            move |_| {
                let _ = sender.send(COUNT.get());
            },
        );
        builder.build()?.fit(&mut rows(), None)?;
        Ok(receiver.recv().ok().flatten())
    })?;
    assert_eq!(counts, [Some(10), Some(11)]);
    once(|| std::fs::remove_dir_all(&folder).unwrap());
    Ok(())
}
