//! `Cx::eval`: a hook computes with the model as evaluation has it.

use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::hooks::{Amp, Ema, Lora, Swa};
use trainer::prelude::*;

use crate::model::message;
use crate::support::{alone, device};

type Loss = fn(&Tensor, &Tensor) -> Tensor;
type Net = Supervised<nn::SequentialT, Loss>;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.to_kind(Kind::Float).cross_entropy_for_logits(labels)
}

fn task() -> Net {
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let net = nn::seq_t()
        .add(nn::linear(&root / "fc1", 4, 8, Default::default()).named("fc1"))
        .add(nn::batch_norm1d(&root / "bn1", 8, Default::default()))
        .add_fn_t(|xs, train| xs.dropout(0.5, train))
        .add_fn(Tensor::relu)
        .add(nn::linear(&root / "fc2", 8, 3, Default::default()).named("fc2"));
    Supervised::new(vs, net, loss)
}

fn rows() -> (Tensor, Tensor) {
    let inputs = (Tensor::arange(16 * 4, FLOAT) * 0.37).sin().view([16, 4]).to_device(device());
    let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
    (inputs, labels)
}

fn loader() -> InMemory<(Tensor, Tensor)> {
    InMemory::new(rows()).unwrap().batch_size(4)
}

fn builder() -> TrainerBuilder<Net> {
    Trainer::builder(task()).optimizer(Sgd::new(0.5)).discover(Discover::None).epochs(3).seed(7)
}

type Outputs = Arc<Mutex<Vec<(Phase, Tensor)>>>;

/// Keeps the outputs of the model for all rows, at the moment `P`.
fn evaluated<P>(builder: TrainerBuilder<Net>, outputs: &Outputs) -> TrainerBuilder<Net>
where
    P: trainer::moment::AtPoint + trainer::lifecycle::CanEval,
{
    let outputs = Arc::clone(outputs);
    builder.on::<P>("evaluate", move |cx: &mut Cx<P>| {
        let output = cx.eval(|task: &mut Net| task.pred(&rows(), Mode::Eval))?;
        assert!(!output.requires_grad());
        outputs.lock().unwrap().push((cx.phase(), output));
        Ok::<_, Error>(())
    })
}

#[test]
fn a_hook_computes_what_evaluation_computes() {
    alone(compare_methods);
}

fn compare_methods() {
    type Add = fn(TrainerBuilder<Net>) -> TrainerBuilder<Net>;
    let methods: [(&str, Add); 9] = [
        ("nothing", |builder| builder),
        ("lora", |builder| builder.hook(Lora::new("fc*", 2).alpha(16.0).dropout(0.3))),
        ("ema", |builder| builder.hook(Ema::new(0.9))),
        ("ema with buffers", |builder| builder.hook(Ema::new(0.9).buffers(true))),
        ("swa", |builder| builder.hook(Swa::from_epoch(1))),
        ("batch norm update", |builder| builder.hook(Swa::from_epoch(1)).update_batch_norm(loader())),
        ("amp", |builder| builder.hook(Amp::bf16())),
        ("lora, ema, amp", |builder| {
            builder.hook(Lora::new("fc*", 2).alpha(16.0)).hook(Ema::new(0.9)).hook(Amp::bf16())
        }),
        ("lora, swa, batch norm update", |builder| {
            let builder = builder.hook(Lora::new("fc1", 2)).hook(Swa::from_epoch(0));
            builder.update_batch_norm(loader())
        }),
    ];
    type At = fn(TrainerBuilder<Net>, &Outputs) -> TrainerBuilder<Net>;
    let moments: [(&str, At); 7] = [
        ("after_epoch", evaluated::<AfterEpoch>),
        ("before_valid", evaluated::<BeforeValid>),
        ("after_valid", evaluated::<AfterValid>),
        ("after_step", evaluated::<AfterStep>),
        ("before_step", evaluated::<BeforeStep>),
        ("after_fit", evaluated::<AfterFit>),
        ("after_predict_step", evaluated::<AfterPredictStep>),
    ];
    for (method, add) in methods {
        // What hooks compute changes nothing.
        let mut plain = add(builder()).build().unwrap();
        let expected_summary = plain.fit(&mut loader(), Some(&mut loader())).unwrap();
        let expected = Tensor::cat(&plain.predict(&mut loader()).unwrap(), 0);
        for (moment, at) in moments {
            let case = format!("{method} at {moment}");
            let outputs = Outputs::default();
            let mut trainer = at(add(builder()), &outputs).build().unwrap();
            let summary = trainer.fit(&mut loader(), Some(&mut loader())).unwrap();
            assert_eq!(summary.metrics, expected_summary.metrics, "{case}");
            let predicted = Tensor::cat(&trainer.predict(&mut loader()).unwrap(), 0);
            assert_eq!(predicted, expected, "{case}");
            let outputs = std::mem::take(&mut *outputs.lock().unwrap());
            let (_, last) = outputs.last().unwrap();
            assert_eq!(last.kind(), predicted.kind(), "{case}");
            // The outputs at the end of the fit, or in `predict`, are those of `predict`, up to the
            // order of sums in a larger batch.
            let distance = (last - &predicted).abs().max().double_value(&[]);
            assert!(
                distance < 1e-6 || predicted.kind() != Kind::Float && distance < 1e-2,
                "{case}: {distance}"
            );
        }
    }
}

#[test]
fn training_continues_with_the_live_weights() {
    alone(compare_training);
}

fn compare_training() {
    // In every training batch, the model is evaluated before the forward pass and after the
    // backward pass, which must not disturb the graph.
    let run = |evaluates: bool| {
        let outputs = Outputs::default();
        let mut builder = builder().hook(Ema::new(0.9)).hook(Lora::new("fc*", 2));
        if evaluates {
            builder = evaluated::<BeforePred>(builder, &outputs);
            builder = evaluated::<AfterBackward>(builder, &outputs);
            builder = evaluated::<BeforeOptStep>(builder, &outputs);
        }
        let mut trainer = builder.accumulate(2).build().unwrap();
        trainer.fit(&mut loader(), Some(&mut loader())).unwrap();
        let vars = trainer.vars().iter().map(|var| var.tensor.copy()).collect::<Vec<_>>();
        (vars, outputs.lock().unwrap().len())
    };
    let ((plain, none), (evaluated, outputs)) = (run(false), run(true));
    assert_eq!(none, 0);
    assert_eq!(outputs, 3 * (4 + 4 + 4 + 2));
    assert_eq!(plain, evaluated);
}

#[test]
fn averages_stay_in_use_within_an_evaluation_pass() {
    alone(compare_averages);
}

fn compare_averages() {
    // A hook that evaluates the model before the forward pass of each validation batch.
    let losses = |evaluates: bool| {
        let outputs = Outputs::default();
        let mut builder = builder().hook(Ema::new(0.5));
        if evaluates {
            builder = evaluated::<BeforePred>(builder, &outputs);
        }
        builder.build().unwrap().fit(&mut loader(), Some(&mut loader())).unwrap().metrics
    };
    assert_eq!(losses(false), losses(true));
}

#[test]
fn hooks_around_eval_run() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |text: &'static str| {
        let seen = Arc::clone(&seen);
        move |phase: Phase| seen.lock().unwrap().push(format!("{text} in {phase}"))
    };
    let (before, after, module) = (note("before"), note("after"), note("module"));
    let outputs = Outputs::default();
    let builder = builder()
        .epochs(1)
        .on::<BeforeEval>("before", move |cx| before(cx.phase()))
        .on::<AfterEval>("after", move |cx| after(cx.phase()));
    let mut trainer =
        evaluated::<AfterEpoch>(builder, &outputs).hook(AtModule(Box::new(module))).build().unwrap();
    trainer.fit(&mut loader(), None).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(seen[4..], ["before in predict", "module in predict", "after in predict"]);
    assert_eq!(outputs.lock().unwrap()[0].0, Phase::Train); // the hook's own phase
}

struct AtModule(Box<dyn Fn(Phase) + Send>);

#[hook]
impl AtModule {
    #[hook(of = "fc1")]
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) {
        (self.0)(cx.phase());
    }
}

struct Around(&'static str);

#[hook]
impl Around {
    fn eval(&mut self, cx: &mut Cx<Eval>, next: Next<Eval>) -> Result<Done> {
        match self.0 {
            "skip" => Ok(next.skip()),
            "replace" => next.replace(cx, |_| Ok::<_, Error>(())),
            "handle" => next.run_or(cx, |_, _| Ok::<_, Error>(())),
            _ => next.run(cx),
        }
    }
}

#[test]
fn mistakes_are_errors() {
    let failing = |around: &'static str, fails: bool| {
        let mut trainer = builder()
            .hook(Around(around))
            .on::<AfterEpoch>("evaluate", move |cx| {
                cx.eval(|_: &mut Net| if fails { Err(Error::msg("on purpose")) } else { Ok(()) })
            })
            .build()
            .unwrap();
        message(&trainer.fit(&mut loader(), None).unwrap_err())
    };
    for (around, fails, expected) in [
        ("skip", false, "did not run `eval`"),
        ("replace", false, "did not run `eval`"),
        ("handle", true, "did not run `eval`"),
        ("run", true, "on purpose"),
    ] {
        let error = failing(around, fails);
        assert!(error.contains(expected), "{around}: {error}");
    }
    let other = builder().on::<AfterEpoch>("evaluate", |cx| cx.eval(|_: &mut u8| Ok(())));
    let error = message(&other.build().unwrap().fit(&mut loader(), None).unwrap_err());
    assert!(error.contains("not a `u8`"), "{error}");
    let nested = builder()
        .on::<BeforeEval>("nested", |cx| cx.eval(|_: &mut Net| Ok(())))
        .on::<AfterEpoch>("evaluate", |cx| cx.eval(|_: &mut Net| Ok(())));
    let error = message(&nested.build().unwrap().fit(&mut loader(), None).unwrap_err());
    assert!(error.contains("is already running"), "{error}");
}
