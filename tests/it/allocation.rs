//! Heap allocations: a training step makes none after the first epoch.

use allocation_counter::measure;
use trainer::OnSignal;
use trainer::data::from_fn;
use trainer::hooks::{
    HyperparameterMonitor, HyperparameterSchedule, NanGuard, ParameterMonitor, SystemMonitor,
    ThroughputMonitor,
};
use trainer::prelude::*;
use trainer::schedule::Cosine;

use crate::model;

struct Counter(u64);

#[hook]
impl Counter {
    fn after_backward(&mut self, cx: &mut Cx<AfterBackward>) {
        self.0 += cx.counters().batch_idx;
    }
}

#[test]
fn a_step_after_the_first_epoch_allocates_nothing() {
    let mut trainer = Trainer::builder(model::named_task())
        .optimizer(AdamW::new(1e-3))
        .discover(Discover::crates(["plugin"])) // free hooks, one of which logs
        .on_signal(OnSignal::Ignore) // installing signal handlers allocates
        .hook(Counter(0))
        .hook(HyperparameterSchedule::lr(Cosine::to(0.1).over(900).warm_up(100)))
        .on::<AfterModuleForward>("module", |cx| assert_eq!(cx.module(), "fc1"))
        .on::<AfterStep>("logs", |cx| cx.log("seen", cx.counters().samples_seen))
        .build()
        .unwrap();
    let (inputs, labels) =
        (Tensor::ones([4, 4], (Kind::Float, Device::Cpu)), Tensor::zeros([4], (Kind::Int64, Device::Cpu)));
    let mut allocations = |steps: i64| {
        let mut batches = from_fn(|_| (0..steps).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
        measure(|| drop(trainer.fit(&mut batches, None).unwrap())).count_total
    };
    allocations(10); // the first epoch creates the metrics
    let short = allocations(10);
    let long = allocations(1010);
    assert!(short > 0, "an entry point allocates, so the counter works");
    assert_few(short, long);
}

/// An entry point records its numbers as text, whose buffer grows with their length; a step adds
/// none to that.
fn assert_few(short: u64, long: u64) {
    assert!(long.abs_diff(short) <= 3, "{short} allocations, {long} in 1,000 more steps");
}

/// Counts the scalars of all records.
struct Logger(u64);

#[hook]
impl Logger {
    fn after_record(&mut self, cx: &mut Cx<AfterRecord>) {
        self.0 += cx.record().scalars().count() as u64;
    }
}

#[test]
fn steps_between_records_allocate_nothing_with_a_logger() {
    let names: Vec<String> = (0..10).map(|nth| format!("value{nth}")).collect();
    let mut trainer = Trainer::builder(model::task())
        .optimizer(AdamW::new(1e-3))
        .discover(Discover::None)
        .on_signal(OnSignal::Ignore)
        .record_every(Every::Steps(5000))
        .hook(Logger(0))
        .hook(HyperparameterMonitor::new())
        .hook(ParameterMonitor::new("*").weights(true).updates(true).histograms(true))
        .hook(ThroughputMonitor::new())
        .hook(SystemMonitor::new())
        .hook(NanGuard::fail())
        .on::<AfterStep>("logs", move |cx| {
            for name in &names {
                cx.log(name, cx.counters().samples_seen);
            }
            let weight = cx.vars();
            for var in weight.parameters() {
                cx.log_histogram(&var.name, &var.tensor);
            }
            cx.log_text("text", "not kept");
        })
        .build()
        .unwrap();
    let (inputs, labels) =
        (Tensor::ones([4, 4], (Kind::Float, Device::Cpu)), Tensor::zeros([4], (Kind::Int64, Device::Cpu)));
    let mut allocations = |steps: i64| {
        let mut batches = from_fn(|_| (0..steps).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
        measure(|| drop(trainer.fit(&mut batches, None).unwrap())).count_total
    };
    allocations(10);
    let short = allocations(10);
    let long = allocations(1010);
    assert!(short > 0, "an entry point allocates, so the counter works");
    assert_few(short, long);
    assert!(trainer.hook::<Logger>().unwrap().0 > 0);
}
