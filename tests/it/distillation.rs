//! `hooks::Distillation`: a model learns what another one predicts.

use std::fs;

use tch::nn::ModuleT;
use trainer::TrainerBuilder;
use trainer::data::{Batch, Rows};
use trainer::hooks::{Amp, Checkpoint, Distillation, Sam};
use trainer::modules::{self, Patterns};
use trainer::prelude::*;

use crate::support::{cancelled_at, device, distance, exact_state, scratch};

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);
const INT: (Kind, Device) = (Kind::Int64, Device::Cpu);

type Loss = fn(&Tensor, &Tensor) -> Tensor;
type Net = Supervised<nn::SequentialT, Loss>;

/// Returns a network, `<name>.fc1` and `<name>.fc2`, with weights that depend on `phase` alone, and
/// with dropout.
fn net(name: &str, width: i64, phase: f64) -> Net {
    let vs = nn::VarStore::new(device());
    let path = vs.root() / name;
    let net = nn::seq_t()
        .add(nn::linear(&path / "fc1", 4, width, Default::default()).named(&path / "fc1"))
        .add_fn(Tensor::tanh)
        .add_fn_t(|xs, train| if train { xs * 1.5 } else { xs.shallow_clone() })
        .add(nn::linear(&path / "fc2", width, 3, Default::default()).named(&path / "fc2"));
    for (name, mut value) in vs.variables() {
        let values =
            (Tensor::arange(value.numel() as i64, FLOAT) * 1.3 + phase + name.len() as f64).sin() * 0.6;
        tch::no_grad(|| value.copy_(&values.view_as(&value)));
    }
    Supervised::new(vs, net, |logits, labels| {
        logits.to_kind(Kind::Float).cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0)
    })
}

fn student() -> Net {
    net("distillation_student", 5, 0.0)
}

fn teacher(phase: f64) -> Net {
    net("distillation_teacher", 5, phase)
}

fn data() -> InMemory<(Tensor, Tensor)> {
    let inputs = (Tensor::arange(26 * 4, FLOAT) * 0.37).sin().view([26, 4]);
    InMemory::new((inputs, Tensor::arange(26, INT).remainder(3))).unwrap().batch_size(8)
}

fn distillation() -> Distillation {
    Distillation::new(teacher(2.0)).temperature(3.0).weight(0.7)
}

fn hinted() -> Distillation {
    distillation().hint("distillation_student.fc1", "distillation_teacher.fc1", 0.2)
}

fn builder(distillation: Distillation) -> TrainerBuilder<Net> {
    Trainer::builder(student()).discover(Discover::None).optimizer(Sgd::new(0.3)).hook(distillation).epochs(1)
}

/// Returns the tensors of a batch, as the loader yields it first.
fn first() -> (Tensor, Tensor) {
    data().batches(0, 0).unwrap().next().unwrap().unwrap()
}

#[test]
fn a_step_equals_a_computation_by_hand() {
    let (inputs, labels) = first();
    let (own, its) = (student(), teacher(2.0));
    let mut task = (own, its);
    let logits = task.0.pred(&(inputs.copy(), labels.copy()), Mode::Train).unwrap();
    let soft = task.1.pred(&(inputs.copy(), labels.copy()), Mode::Eval).unwrap().detach();
    let divergence = (&logits / 3.0).log_softmax(-1, Kind::Float).f_kl_div(
        &(&soft / 3.0).softmax(-1, Kind::Float),
        Reduction::Sum,
        false,
    );
    let divergence = divergence.unwrap() / 8.0 * 9.0;
    let weights = |task: &Net, layer: &str| {
        let vars = task.vars().variables();
        let get = |name: &str| vars.iter().find(|(own, _)| own.ends_with(name)).unwrap().1.shallow_clone();
        (get(&format!("{layer}.weight")), get(&format!("{layer}.bias")))
    };
    let hidden = |task: &Net| {
        let (weight, bias) = weights(task, "fc1");
        inputs.linear(&weight, Some(&bias))
    };
    let hint = (hidden(&task.0) - hidden(&task.1).detach()).square().mean(Kind::Float) * 0.2;
    let cross = logits.cross_entropy_for_logits(&labels);
    let cases = [
        (distillation(), &cross * 0.3 + &divergence * 0.7, &divergence * 0.7),
        (hinted(), &cross * 0.3 + &divergence * 0.7 + &hint, &divergence * 0.7 + &hint),
    ];
    for (hook, loss, added) in cases {
        task.0.vars_mut().unwrap().unfreeze();
        let parameters: Vec<Tensor> = task.0.vars().trainable_variables();
        let grads = Tensor::run_backward(&[&loss], &parameters, true, false);
        let mut trainer = builder(hook).max_steps(1).build().unwrap();
        let summary = trainer.fit(&mut data(), None).unwrap();
        assert!((summary.metrics["train/loss"] - loss.double_value(&[])).abs() < 1e-6);
        assert!((summary.metrics["train/distillation_loss"] - added.double_value(&[])).abs() < 1e-6);
        let expected = task.0.vars().variables();
        for (parameter, grad) in parameters.iter().zip(&grads) {
            let name = expected.iter().find(|(_, value)| value.data_ptr() == parameter.data_ptr()).unwrap().0;
            let updated = parameter.detach() - grad * 0.3;
            assert!(distance(&trainer.vars().get(name).unwrap().detach(), &updated) < 1e-6, "{name}");
        }
    }
}

#[test]
fn evaluation_uses_the_loss_of_the_task() {
    let mut plain = Trainer::builder(student()).discover(Discover::None).build().unwrap();
    let mut trainer = builder(distillation()).build().unwrap();
    let summary = trainer.validate(&mut data()).unwrap();
    assert_eq!(summary.metrics["valid/loss"], plain.validate(&mut data()).unwrap().metrics["valid/loss"]);
    assert!(summary.metrics.iter().all(|(name, _)| !name.contains("distillation")));
}

#[test]
fn with_a_weight_of_1_the_student_learns_to_match_the_teacher() {
    let mut trainer = builder(Distillation::new(teacher(2.0)).weight(1.0))
        .optimizer(AdamW::new(0.02))
        .epochs(200)
        .build()
        .unwrap();
    let summary = trainer.fit(&mut data(), None).unwrap();
    let first = summary.history.column("train/distillation_loss").unwrap()[0];
    assert!(summary.metrics["train/distillation_loss"] < 0.02 * first, "{first} {:?}", summary.metrics);
}

#[test]
fn the_teacher_is_evaluated_without_gradients_and_does_not_change() {
    let task = teacher(2.0);
    let values: Vec<(String, Tensor)> = task.vars().variables().into_iter().collect();
    let before: Vec<Tensor> = values.iter().map(|(_, value)| value.detach().copy()).collect();
    let mut trainer = builder(Distillation::new(task)).build().unwrap();
    trainer.fit(&mut data(), None).unwrap();
    for ((name, value), before) in values.iter().zip(&before) {
        assert!(value.detach().equal(before) && !value.grad().defined(), "{name}");
    }
    assert!(trainer.vars().iter().all(|var| var.name.starts_with("distillation_student")));
}

/// A batch of sequences with a mask.
#[derive(Batch, Debug, Rows)]
struct Sequences {
    inputs: Tensor,
    labels: Tensor,
    mask: Tensor,
}

/// The student for sequences, whose prediction is a pair.
struct Sequential(Net);

impl Task for Sequential {
    type Batch = Sequences;
    type Pred = (Tensor, i64);

    fn vars(&self) -> &nn::VarStore {
        self.0.vars()
    }
    fn pred(&mut self, batch: &Sequences, mode: Mode) -> Result<(Tensor, i64)> {
        Ok((self.0.net().forward_t(&batch.inputs, mode == Mode::Train), 1))
    }
    fn loss(&mut self, (logits, _): &(Tensor, i64), batch: &Sequences) -> Result<Tensor> {
        let each = logits.view([-1, 3]).cross_entropy_loss::<Tensor>(
            &batch.labels.view([-1]),
            None,
            Reduction::None,
            -100,
            0.0,
        );
        let mask = batch.mask.view([-1]).to_kind(Kind::Float);
        Ok((each * &mask).sum(Kind::Float) / mask.sum(Kind::Float))
    }
    fn weight(&self, batch: &Sequences) -> f64 {
        batch.mask.sum(Kind::Double).double_value(&[])
    }
    fn pred_tensors((logits, _): &(Tensor, i64), visit: &mut dyn FnMut(&Tensor)) {
        visit(logits);
    }
}

fn sequences(junk: f64) -> Sequences {
    let mask = Tensor::from_slice(&[1i64, 1, 1, 0, 1, 0, 0, 0]).view([2, 4]);
    let inputs = (Tensor::arange(32, FLOAT) * 0.7).sin().view([2, 4, 4]);
    let padding = mask.eq(0).unsqueeze(-1);
    let inputs = inputs.where_self(&padding.logical_not(), &inputs.full_like(junk));
    Sequences { inputs, labels: Tensor::arange(8, INT).remainder(3).view([2, 4]), mask }
}

/// Trains on rows of sequences, and returns the parameters and the loss.
fn trained_on_sequences(junk: f64, size: usize, accumulate: u64) -> (Tensor, f64) {
    let its = teacher(2.0);
    let Sequences { inputs, labels, mask } = sequences(junk);
    let mut data = InMemory::new(Sequences { inputs, labels, mask }).unwrap().batch_size(size);
    let hook = Distillation::from_fn(nn::VarStore::new(device()), move |batch: &Sequences| {
        Ok(its.net().forward_t(&batch.inputs, false))
    })
    .logits(|(logits, _): &(Tensor, i64)| logits)
    .mask(|batch: &Sequences| batch.mask.shallow_clone());
    let builder = Trainer::builder(Sequential(student())).discover(Discover::None).optimizer(Sgd::new(0.3));
    let mut trainer = builder.hook(hook).epochs(1).accumulate(accumulate).build().unwrap();
    let summary = trainer.fit(&mut data, None).unwrap();
    let flat: Vec<Tensor> = trainer.vars().parameters().map(|var| var.tensor.detach().view([-1])).collect();
    (Tensor::cat(&flat, 0), summary.metrics["train/distillation_loss"])
}

#[test]
fn positions_outside_of_the_mask_do_not_contribute_to_the_loss() {
    let (one, loss) = trained_on_sequences(0.0, 2, 1);
    let (other, same) = trained_on_sequences(50.0, 2, 1);
    assert!(distance(&one, &other) < 1e-6 && (loss - same).abs() < 1e-6);
    // Two batches with 3 and 1 tokens are one batch with 4.
    let (accumulated, same) = trained_on_sequences(0.0, 1, 2);
    assert!(distance(&one, &accumulated) < 1e-6 && (loss - same).abs() < 1e-6);
}

#[test]
fn invalid_settings_and_mismatched_outputs_are_reported_with_the_fix() {
    let hint = |weight| distillation().hint("distillation_student.fc1", "distillation_teacher.fc1", weight);
    for (hook, expected) in [
        (distillation().temperature(0.0), "`.temperature(0.0)`: expected a finite number above 0"),
        (distillation().weight(1.5), "`.weight(1.5)`: expected at least 0.0 and at most 1.0"),
        (
            hint(0.0),
            "`.hint(\"distillation_student.fc1\", \"distillation_teacher.fc1\", 0.0)`: expected a finite weight",
        ),
    ] {
        let text = builder(hook).build().unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
    let wide = || Distillation::new(net("distillation_wide", 6, 1.0));
    let batch_of_another_type =
        Distillation::from_fn(nn::VarStore::new(device()), |inputs: &Tensor| Ok(inputs.copy()));
    let other_shape =
        Distillation::from_fn(
            nn::VarStore::new(device()),
            |(inputs, _): &(Tensor, Tensor)| Ok(inputs.copy()),
        );
    for (hook, expected) in [
        (
            distillation().hint("distillation_none", "distillation_teacher.fc1", 1.0),
            "the forward pass of the student called no module `distillation_none`: name it with `.named(…)`",
        ),
        (
            distillation().hint("distillation_student.fc1", "distillation_nobody", 1.0),
            "the forward pass of the teacher called no module `distillation_nobody`: name it with `.named(…)`",
        ),
        (
            wide().hint("distillation_student.fc1", "distillation_wide.fc1", 1.0),
            "the outputs of the student have the shapes [[8, 5]], and those of the teacher [[8, 6]]: expected the same",
        ),
        (
            other_shape,
            "the student's logits have the shape [8, 3] and are on Cpu, but the teacher's have the shape [8, 4] and are on Cpu: expected the same shape",
        ),
        (
            distillation().mask(|(inputs, _): &(Tensor, Tensor)| inputs.copy()),
            "the mask has the shape [8, 4]: expected [8], the shape of the logits without the class dimension",
        ),
        (batch_of_another_type, "Tensor"),
        (distillation().logits(|(logits, _): &(Tensor, i64)| logits), "prediction"),
    ] {
        let text = builder(hook).build().unwrap().fit(&mut data(), None).unwrap_err().to_string();
        assert!(text.contains(expected) && text.contains("Distillation"), "{text}");
    }
}

#[test]
fn a_resume_with_a_different_teacher_is_refused() {
    let folder = scratch("distillation-teacher");
    let run = |phase: f64, at| {
        let hook = Distillation::new(teacher(phase));
        let builder = builder(hook).epochs(2).hook(Checkpoint::new(&folder)).resume(Resume::Auto);
        cancelled_at(at, builder).build().unwrap().fit(&mut data(), None)
    };
    assert!(run(2.0, Some(3)).unwrap_err().is_cancelled());
    let text = run(2.5, None).unwrap_err().to_string();
    assert!(text.contains("Distillation.teacher` was \""), "{text}");
    run(2.0, None).unwrap();
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one() {
    let folder = scratch("distillation-resume");
    let end = |name: &str, at: Option<u64>| {
        let checkpoint = Checkpoint::new(folder.join(name)).every(Every::Steps(1));
        let builder = builder(hinted()).epochs(3).accumulate(2).hook(Amp::bf16()).hook(checkpoint);
        let mut trainer = cancelled_at(at, builder.resume(Resume::Auto)).build().unwrap();
        let result = trainer.fit(&mut data().shuffle(4), None);
        result.map(|summary| (exact_state(&trainer), format!("{:?}", summary.history)))
    };
    let whole = end("whole", None).unwrap();
    for at in 1..12 {
        let name = at.to_string();
        assert!(end(&name, Some(at)).unwrap_err().is_cancelled());
        assert!(end(&name, None).unwrap() == whole, "batch {at}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_loss_that_is_computed_twice_includes_the_teacher_both_times() {
    let mut trainer = builder(hinted()).hook(Sam::new(1e-6)).max_steps(1).build().unwrap();
    let mut plain = builder(hinted()).max_steps(1).build().unwrap();
    let losses = [trainer.fit(&mut data(), None), plain.fit(&mut data(), None)]
        .map(|summary| summary.unwrap().metrics["train/loss"]);
    assert_eq!(losses[0], losses[1]);
    for (one, other) in trainer.vars().parameters().zip(plain.vars().parameters()) {
        assert!(distance(&one.tensor.detach(), &other.tensor.detach()) < 1e-5, "{}", one.name);
    }
}

/// Reads the outputs of modules in a hook around `pred`.
#[derive(Default)]
struct Reads {
    recorded: Vec<modules::Outputs>,
}

#[hook]
impl Reads {
    fn pred(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        let (done, outputs) = modules::outputs(&"distillation_student.fc?".into(), || next.run(cx));
        self.recorded.push(outputs);
        done
    }
}

#[test]
fn recorded_outputs_include_changes_made_by_hooks() {
    let recorded = |doubles: bool| {
        let builder = Trainer::builder(student()).discover(Discover::None).hook(Reads::default());
        let options = HookOptions::named("double").of("distillation_student.fc1");
        let builder = if doubles {
            builder.on::<AfterModuleForward>(options, |cx| {
                let output = cx.output() * 2.0;
                cx.set_output(output)
            })
        } else {
            builder
        };
        let mut trainer = builder.build().unwrap();
        for _ in 0..2 {
            trainer.validate(&mut data()).unwrap();
        }
        std::mem::take(&mut trainer.hook_mut::<Reads>().unwrap().recorded)
    };
    let [plain, doubled] = [false, true].map(recorded);
    assert_eq!((plain.len(), doubled.len()), (8, 8));
    for (plain, doubled) in plain.iter().zip(&doubled) {
        assert_eq!((plain.len(), doubled.len()), (2, 2), "both modules, although one has no hook");
        let [one, other] = [plain, doubled].map(|outputs| outputs["distillation_student.fc1"][0].copy());
        assert!((one * 2.0).equal(&other));
    }
}

#[test]
fn outputs_of_modules_are_recorded_outside_of_a_run() {
    let task = teacher(2.0);
    let (inputs, _) = first();
    let names = Patterns::from("*.fc?");
    let (logits, outputs) = modules::outputs(&names, || task.net().forward_t(&inputs, false));
    assert_eq!(outputs.keys().collect::<Vec<_>>(), ["distillation_teacher.fc1", "distillation_teacher.fc2"]);
    assert!(outputs["distillation_teacher.fc2"][0].equal(&logits));
    let (inner, outer) = modules::outputs(&names, || {
        let inner = modules::outputs(&names, || task.net().forward_t(&inputs, false)).1;
        drop(task.net().forward_t(&inputs, false));
        inner
    });
    assert_eq!(inner.len(), 2);
    assert_eq!(outer["distillation_teacher.fc1"].len(), 1, "an inner call has its own outputs");
}

/// Trains, and returns the loss and the parameters.
#[cfg(target_os = "linux")]
fn trained() -> Result<(f64, Vec<f32>)> {
    let mut trainer = builder(hinted()).epochs(3).accumulate(2).build()?;
    let summary = trainer.fit(&mut data().shuffle(5), None)?;
    let values = trainer
        .vars()
        .parameters()
        .flat_map(|var| Vec::<f32>::try_from(&var.tensor.detach().view([-1])).unwrap());
    Ok((summary.metrics["train/distillation_loss"], values.collect()))
}

#[test]
#[cfg(target_os = "linux")]
fn several_ranks_distill_like_a_single_process() {
    use trainer::testing::{Ranks, once};
    let (loss, alone) = once(|| trained().unwrap());
    let all = Ranks::new(2).run(trained).unwrap();
    assert_eq!(all[0], all[1]);
    assert!((all[0].0 - loss).abs() < 1e-6, "{} {loss}", all[0].0);
    for (one, other) in all[0].1.iter().zip(&alone) {
        assert!((one - other).abs() < 1e-5, "{one} {other}");
    }
    let text = Ranks::new(2).run(|| {
        let rank = trainer::distributed::World::from_env()?.rank();
        builder(Distillation::new(teacher(f64::from(rank)))).build()?.fit(&mut data(), None).map(drop)
    });
    let text = text.unwrap_err().to_string();
    assert!(text.contains("Distillation.teacher`"), "{text}");
}
