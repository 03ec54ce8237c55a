//! Hooks that rest until the next pass.

use trainer::prelude::*;

use crate::model;

/// Notes its calls in the log of the test, and rests after one batch of a pass.
struct Rests {
    name: &'static str,
    calls: std::sync::mpsc::Sender<String>,
}

#[hook]
impl Rests {
    fn after_step(&mut self, cx: &Cx<AfterStep>) {
        self.calls.send(format!("{} {} {}", self.name, cx.phase(), cx.counters().batch_idx)).unwrap();
        if self.name.starts_with("rests") {
            cx.rest();
        }
    }
}

#[test]
fn a_hook_that_rests_is_called_again_in_the_next_pass_of_the_phase_and_in_its_order() {
    let (calls, received) = std::sync::mpsc::channel();
    let hook = |name| Rests { name, calls: calls.clone() };
    let mut trainer = model::builder()
        .epochs(2)
        .hook(hook("first"))
        .hook(hook("rests1"))
        .hook(hook("middle"))
        .hook(hook("rests2"))
        .build()
        .unwrap();
    let table = trainer.describe_hooks();
    trainer.fit(&mut model::rows(8), Some(&mut model::rows(8))).unwrap();
    let seen: Vec<_> = received.try_iter().collect();
    let expected = |phase: &str| {
        let all = ["first", "rests1", "middle", "rests2"].map(|name| format!("{name} {phase} 1"));
        let others = ["first", "middle"].map(|name| format!("{name} {phase} 2"));
        [all.to_vec(), others.to_vec()].concat()
    };
    let epoch = [expected("train"), expected("valid")].concat();
    assert_eq!(seen, [epoch.clone(), epoch].concat());
    assert_eq!(trainer.describe_hooks(), table);
}
