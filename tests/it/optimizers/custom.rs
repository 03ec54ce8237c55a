//! Optimizers of tch, and algorithms that a program defines.

use trainer::hooks::HyperparameterSchedule;
use trainer::optim::{Algorithm, Custom, Setting, StateSlot, Tch};
use trainer::schedule::Constant;

use super::*;

#[test]
fn a_tch_optimizer_trains_like_its_native_counterpart() {
    let net = Net::new(Kind::Float);
    let adam = Tch::new(nn::Adam::default(), &net.vs, 1e-2).unwrap();
    let mut theirs = Trainer::builder(net).optimizer(adam).discover(Discover::None).build().unwrap();
    let mut ours = trainer_with(Adam::new(1e-2));
    for (lr, weight_decay) in [(1e-2, 0.0), (1e-3, 0.0), (2e-3, 0.1)] {
        for trainer in [&mut theirs, &mut ours] {
            let group = &mut groups_mut(trainer)[0];
            group.lr = lr;
            group.weight_decay = weight_decay;
            train_steps(trainer, 10);
        }
        for (one, other) in theirs.vars().iter().zip(ours.vars().iter()) {
            assert!(one.tensor.allclose(&other.tensor, 1e-5, 1e-6, false), "{} at lr {lr}", one.name);
        }
    }
    assert!(ours.optimizer().unwrap().state_is_complete());
    assert!(!theirs.optimizer().unwrap().state_is_complete());
    let names: Vec<_> = groups_mut(&mut theirs)[0].settings().map(|(name, _)| name.to_owned()).collect();
    assert_eq!(names, ["lr", "weight_decay", "frozen"]);
    groups_mut(&mut theirs)[0].set_frozen(true).unwrap();
    assert!(theirs.vars().parameters().all(|var| !var.tensor.requires_grad()));

    let elsewhere = Tch::new(nn::Adam::default(), &Net::new(Kind::Float).vs, 1e-2).unwrap();
    let error = builder(Kind::Float, elsewhere).build().unwrap_err().to_string();
    assert!(error.contains("updates every parameter of the `VarStore` that it was built for"), "{error}");
}

/// AdamW as a program writes it, with single-tensor operations.
pub(crate) static BY_HAND: Algorithm = Algorithm::new("AdamWByHand", by_hand)
    .settings(&[
        Setting::fraction("beta1", 0.9),
        Setting::fraction("beta2", 0.999),
        Setting::at_least("eps", 0.0, 1e-8),
        Setting::flag("amsgrad", false),
    ])
    .state(&[
        StateSlot::elements("exp_avg"),
        StateSlot::elements("exp_avg_sq"),
        StateSlot::steps(),
        StateSlot::elements("max_exp_avg_sq").only_with("amsgrad"),
    ])
    .refuses(|group| group.names().any(|name| name == "refused").then(|| "no `refused`".to_owned()));

fn by_hand(group: &ParamGroup) -> Result<()> {
    let beta1 = group.get("beta1")?;
    let beta2 = group.get("beta2")?;
    for mut update in group.updates() {
        let _ = update.parameter.f_mul_scalar_(1.0 - group.lr * group.weight_decay)?;
        let [mean, square, step, rest @ ..] = &mut update.state[..] else { unreachable!() };
        let _ = step.f_add_scalar_(1.0)?;
        let step = step.double_value(&[]);
        let _ = mean.f_lerp_(&update.grad, 1.0 - beta1)?;
        let _ = square.f_lerp_(&update.grad.f_square()?, 1.0 - beta2)?;
        if let [max] = rest {
            max.f_copy_(&max.f_maximum(square)?)?;
        }
        let root = rest.first().unwrap_or(square).f_sqrt()? / (1.0 - beta2.powf(step)).sqrt();
        let rate = group.lr / (1.0 - beta1.powf(step));
        let _ = update.parameter.f_sub_(&(&*mean / (root + group.get("eps")?) * rate))?;
    }
    Ok(())
}

#[test]
fn custom_algorithms_support_the_features_of_built_in_optimizers() {
    let groups = || [("fc1.*", Group::new().lr(2e-2)), ("*.bias", Group::new().weight_decay(0.3))];
    let add = |builder: Builder| builder.hook(HyperparameterSchedule::values("beta1", Constant::new(0.8)));
    for amsgrad in [false, true] {
        let mut own =
            Custom::new(&BY_HAND, 1e-2).weight_decay(0.01).set("amsgrad", f64::from(u8::from(amsgrad)));
        let mut built_in = AdamW::new(1e-2).weight_decay(0.01).amsgrad(amsgrad);
        for (pattern, group) in groups() {
            own = own.group(pattern, group);
        }
        for (pattern, group) in groups() {
            built_in = built_in.group(pattern, group);
        }
        let own = own.layer_decay(0.5, ["fc2.*"]);
        let built_in = built_in.layer_decay(0.5, ["fc2.*"]);
        let mut own = add(builder(Kind::Float, own)).build().unwrap();
        let mut built_in = add(builder(Kind::Float, built_in)).build().unwrap();
        for trainer in [&mut own, &mut built_in] {
            train_steps(trainer, 40);
        }
        for (one, other) in own.vars().iter().zip(built_in.vars().iter()) {
            let off = (&one.tensor - &other.tensor).abs().max().double_value(&[]);
            assert!(off < 1e-4, "{} is off by {off}", one.name);
        }
        let names = |trainer: &Trainer<Net>| -> Vec<String> {
            trainer.optimizer().unwrap().state().into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&own), names(&built_in));
        let settings = group_of(&mut own, "fc1.weight").settings().map(|(name, _)| name.to_owned());
        assert!(settings.eq(["lr", "weight_decay", "frozen", "beta1", "beta2", "eps", "amsgrad"]));
    }
    let mistakes =
        builder(Kind::Float, Custom::new(&BY_HAND, 1e-2).set("beta3", 0.5).set("beta2", 2.0)).build();
    let mistakes = mistakes.unwrap_err().to_string();
    assert!(mistakes.contains("AdamWByHand has no hyperparameter `beta3`"), "{mistakes}");
    assert!(mistakes.contains("the optimizer's `beta2` is 2: expected at least 0 and below 1"), "{mistakes}");
}
