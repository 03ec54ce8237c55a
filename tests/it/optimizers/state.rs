//! The state of optimizers: what it counts, and restoring it.

use super::*;

#[test]
fn step_counts_include_only_steps_with_a_gradient() {
    for (run, optimizer) in reference_runs() {
        let mut trainer = trainer_with(optimizer);
        train_steps(&mut trainer, 10);
        for (name, count) in trainer.optimizer().unwrap().state() {
            let expected = match name.strip_prefix("step/") {
                None => continue,
                Some("sometimes") => 4.0,
                Some("never") => 0.0,
                Some(_) => 10.0,
            };
            assert_eq!(count.double_value(&[]), expected, "{run}: {name}");
        }
    }
}

#[test]
fn restored_optimizer_state_continues_bit_for_bit() {
    for (run, optimizer) in reference_runs() {
        let again = || reference_runs().into_iter().find(|(name, _)| *name == run).unwrap().1;
        let mut uninterrupted = trainer_with(optimizer);
        train_steps(&mut uninterrupted, 100);
        let saved = weights(&uninterrupted);
        let state = uninterrupted.optimizer().unwrap().state();
        let state: Vec<_> = state.into_iter().map(|(name, tensor)| (name, tensor.copy())).collect();
        train_steps(&mut uninterrupted, 100);

        let mut restored = trainer_with(again());
        restored.task_mut().step = 100;
        let _guard = tch::no_grad_guard();
        saved
            .iter()
            .for_each(|(name, tensor)| restored.vars().get(name).unwrap().shallow_clone().copy_(tensor));
        // These tensors share their storage with the optimizer's state.
        for ((name, mut own), (saved, it)) in restored.optimizer().unwrap().state().into_iter().zip(&state) {
            assert_eq!(name, *saved);
            own.copy_(it);
        }
        train_steps(&mut restored, 100);
        assert_eq!(differing(&weights(&uninterrupted), &weights(&restored)), Vec::<String>::new(), "{run}");
        let states = [&uninterrupted, &restored].map(|trainer| trainer.optimizer().unwrap().state());
        assert_eq!(differing(&states[0], &states[1]), Vec::<String>::new(), "{run}");
    }
}

#[test]
fn the_state_of_a_refrozen_group_is_restored() {
    let adamw = || AdamW::new(1e-2).group("fc1.*", Group::new().frozen(true));
    let mut uninterrupted = trainer_with(adamw());
    let thaw = |trainer: &mut Trainer<Net>, thaw: bool| {
        group_of(trainer, "fc1.weight").set_frozen(!thaw).unwrap();
        train_steps(trainer, 10);
    };
    thaw(&mut uninterrupted, true);
    thaw(&mut uninterrupted, false);
    let saved = weights(&uninterrupted);
    let state = uninterrupted.optimizer().unwrap().state();
    let state: Vec<_> = state.into_iter().map(|(name, tensor)| (name, tensor.copy())).collect();
    thaw(&mut uninterrupted, true);

    let mut restored = trainer_with(adamw());
    restored.task_mut().step = 20;
    tch::no_grad(|| {
        saved
            .iter()
            .for_each(|(name, tensor)| restored.vars().get(name).unwrap().shallow_clone().copy_(tensor));
    });
    optimizer(&mut restored).load_state(&state).unwrap();
    thaw(&mut restored, true);
    assert_eq!(differing(&weights(&uninterrupted), &weights(&restored)), Vec::<String>::new());

    // All mismatches are reported.
    let mut other = state;
    other.retain(|(name, _)| name != "exp_avg/sometimes");
    other.push(("exp_avg/fc3.weight".to_owned(), Tensor::zeros([1], (Kind::Float, device()))));
    other.iter_mut().find(|(name, _)| name == "step/never").unwrap().1 =
        Tensor::zeros([2], (Kind::Float, device()));
    assert_eq!(
        optimizer(&mut restored).load_state(&other).unwrap_err().to_string(),
        "the state does not match this optimizer: `exp_avg/sometimes` is missing; `step/never`: expected shape [], \
         found [2] in the saved state; `exp_avg/fc3.weight` is unexpected; \
         load a state that this optimizer saved for the same parameters"
    );
}
