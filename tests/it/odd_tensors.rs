//! Tensors whose values are not simply in their memory, at every place that reads tensors: each
//! reads the right values, or returns an error that names the tensor.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use trainer::checkpoint::{LoadWeights, Resume, Saved, State};
use trainer::data::from_fn;
use trainer::distributed::World;
use trainer::finders::LearningRateFinder;
use trainer::hooks::{Checkpoint, NanGuard};
use trainer::prelude::*;
use trainer::{Tape, TrainerBuilder};
use trainer_formats::tape::difference;

use crate::support::{child_process, scratch};

/// A tensor, and a plain tensor with the same values, if it has any.
struct Odd {
    name: &'static str,
    tensor: Tensor,
    plain: Option<Tensor>,
}

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Returns the odd tensors of these values, of shape `[2, 3]`.
fn odd_tensors(values: [f32; 6]) -> Vec<Odd> {
    let base = Tensor::from_slice(&values).view([2, 3]);
    let complex = Tensor::complex(&base, &(&base * 2.0));
    let same = |tensor: &Tensor| Some(tensor.copy());
    let of = |name, tensor: Tensor, plain| Odd { name, tensor, plain };
    let single = base.narrow(0, 0, 1).narrow(1, 1, 1);
    let mut whole = base.copy();
    let _ = whole.set_source_tensor_storage_offset_(&base.copy(), 1, [2, 2], [2, 1]);
    vec![
        of("plain", base.copy(), same(&base)),
        of("undefined", Tensor::new(), None),
        of("sparse coo", base.to_sparse_sparse_dim(2), same(&base)),
        of("sparse csr", base.to_sparse_csr(None), same(&base)),
        of("sparse csc", base.to_sparse_csc(None), same(&base)),
        of("quantized", base.quantize_per_tensor(0.25, 3, Kind::QInt8), None),
        of(
            "nested",
            Tensor::internal_nested_from_padded(&base, &Tensor::from_slice(&[2i64, 3]).view([2, 1]), false),
            None,
        ),
        of("zero-size", Tensor::zeros([0, 3], FLOAT), same(&Tensor::zeros([0, 3], FLOAT))),
        of("zero-dim", single.reshape([] as [i64; 0]), same(&single.reshape([] as [i64; 0]))),
        of("expanded", single.expand([2, 3], false), Some(single.expand([2, 3], false).contiguous())),
        of("lazily negated", (-&base).internal_neg_view(), same(&base)),
        of("lazily negated part", (-&base).narrow(1, 1, 2).internal_neg_view(), same(&base.narrow(1, 1, 2))),
        of("lazily conjugated", complex.conj_physical().internal_conj(), same(&complex)),
        of(
            "imaginary part of a conjugated",
            complex.conj_physical().internal_conj().imag(),
            same(&(&base * 2.0)),
        ),
        of(
            "lazily zero",
            Tensor::internal_efficientzerotensor([2, 3], FLOAT),
            same(&Tensor::zeros([2, 3], FLOAT)),
        ),
        of("transposed", base.tr().contiguous().tr(), same(&base)),
        of("within other memory", whole.shallow_clone(), same(&whole)),
        of("mkldnn", base.to_mkldnn(), same(&base)),
        of("complex", complex.copy(), same(&complex)),
        of("bool", base.gt(0.0), same(&base.gt(0.0))),
        of("float8", base.to_kind(Kind::Float8e4m3fn), same(&base.to_kind(Kind::Float8e4m3fn))),
        of("bf16", base.to_kind(Kind::BFloat16), same(&base.to_kind(Kind::BFloat16))),
        of(
            "half, not contiguous",
            base.to_kind(Kind::Half).tr(),
            same(&base.tr().to_kind(Kind::Half).contiguous()),
        ),
        of("int", base.to_kind(Kind::Int), same(&base.to_kind(Kind::Int))),
        of("requires a gradient", base.copy().set_requires_grad(true), same(&base)),
        of("computed", base.copy().set_requires_grad(true) * 1.0, same(&base)),
    ]
}

const VALUES: [f32; 6] = [0.5, -0.25, 1.0, 0.75, 2.0, -1.5];

/// A task whose batches have a tensor that it does not read, and a weight that may be its loss.
struct Carrier {
    vars: nn::VarStore,
    fc: nn::Linear,
    loss: Option<Tensor>,
}

impl Carrier {
    fn new() -> Self {
        let vars = nn::VarStore::new(Device::Cpu);
        let fc = nn::linear(
            vars.root() / "fc",
            4,
            2,
            nn::LinearConfig {
                ws_init: nn::Init::Const(0.5),
                bs_init: Some(nn::Init::Const(0.1)),
                bias: true,
            },
        );
        Carrier { vars, fc, loss: None }
    }
}

impl Task for Carrier {
    type Batch = (Tensor, Tensor);
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, (inputs, _): &(Tensor, Tensor), _: Mode) -> Result<Tensor> {
        Ok(inputs.apply(&self.fc))
    }
    fn loss(&mut self, pred: &Tensor, _: &(Tensor, Tensor)) -> Result<Tensor> {
        Ok(self.loss.as_ref().map_or_else(|| pred.square().mean(Kind::Float), Tensor::shallow_clone))
    }
}

/// A hook whose state is a tensor.
struct Keeps(Tensor);

#[hook(state)]
impl Keeps {
    fn before_train_epoch(&mut self, _: &mut Cx<BeforeTrainEpoch>) {}
}

#[diagnostic::do_not_recommend]
impl State for Keeps {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set_tensor("kept", &self.0)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.0 = saved.get_tensor("kept")?.shallow_clone();
        Ok(())
    }
}

fn builder(task: Carrier) -> TrainerBuilder<Carrier> {
    Trainer::builder(task).seed(3).optimizer(Sgd::new(0.1)).discover(Discover::None)
}

fn loader(odd: &Tensor) -> impl Loader<(Tensor, Tensor)> + use<> {
    let odd = Mutex::new(odd.shallow_clone());
    from_fn(move |_| {
        let odd = odd.lock().unwrap().shallow_clone();
        (0..2).map(move |_| Ok::<_, Error>((Tensor::ones([2, 4], FLOAT), odd.shallow_clone())))
    })
    .with_len(2)
    .deterministic(true)
}

/// Trains with `odd` in the batch, and returns the result.
fn fit(builder: TrainerBuilder<Carrier>, odd: &Tensor) -> Result<Trainer<Carrier>> {
    let mut trainer = builder.build()?;
    trainer.fit(&mut loader(odd), None)?;
    Ok(trainer)
}

fn plain() -> Tensor {
    Tensor::zeros([1], FLOAT)
}

fn logged(odd: &Tensor) -> Result<Option<Tensor>> {
    let odd = Mutex::new(odd.shallow_clone());
    let mut trainer = builder(Carrier::new())
        .on::<AfterLoss>("logs", move |cx| cx.log("the value", &*odd.lock().unwrap()))
        .build()?;
    let summary = trainer.fit(&mut loader(&plain()), None)?;
    Ok(Some(Tensor::from(summary.metrics["train/the value"])))
}

fn histogram(odd: &Tensor) -> Result<Option<Tensor>> {
    let odd = Mutex::new(odd.shallow_clone());
    let found = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&found);
    let builder = builder(Carrier::new())
        .record_every(Every::Steps(1))
        .on::<AfterLoss>("logs", move |cx| cx.log_histogram("the value", &*odd.lock().unwrap()))
        .on::<AfterRecord>("notes", move |cx| {
            if let Some((_, one)) = cx.record().histograms().next() {
                let statistics = [one.min, one.max, one.count as f64, one.sum, one.sum_squares];
                *noted.lock().unwrap() = Some(Tensor::from_slice(&statistics));
            }
        });
    fit(builder, &plain())?;
    Ok(found.lock().unwrap().take())
}

fn image(odd: &Tensor) -> Result<Option<Tensor>> {
    let odd = Mutex::new(odd.shallow_clone());
    let found = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&found);
    let builder = builder(Carrier::new())
        .record_every(Every::Steps(1))
        .on::<AfterLoss>("logs", move |cx| cx.log_image("the value", &*odd.lock().unwrap()))
        .on::<AfterRecord>("notes", move |cx| {
            if let Some((_, one)) = cx.record().images().next() {
                *noted.lock().unwrap() = Some(Tensor::from_slice(&one.pixels));
            }
        });
    fit(builder, &plain())?;
    Ok(found.lock().unwrap().take())
}

fn batch_on_tape(odd: &Tensor) -> Result<Option<Tensor>> {
    let folder = scratch("odd-batch");
    fit(builder(Carrier::new()).run_folder(&folder).tape(Tape::full().paranoid(true)), odd)?;
    Ok(None)
}

fn described_batch(odd: &Tensor) -> Result<Option<Tensor>> {
    let mut text = String::new();
    (plain(), odd.shallow_clone()).describe(&mut text);
    assert!(text.starts_with("(Float [1], ") && text.len() > 14, "{text}");
    let _copy = (plain(), odd.shallow_clone()).try_clone();
    (plain(), odd.shallow_clone()).move_to(Device::Cpu)?;
    Ok(None)
}

fn in_checkpoint(odd: &Tensor, in_background: bool) -> Result<Option<Tensor>> {
    let folder = scratch("odd-state");
    let build = |tensor: Tensor| {
        let checkpoint = Checkpoint::new(folder.join("checkpoints")).in_background(in_background);
        builder(Carrier::new()).hook(checkpoint).hook(Keeps(tensor))
    };
    fit(build(odd.shallow_clone()), &plain())?;
    let mut resumed = build(plain()).epochs(2).resume(Resume::Auto).build()?;
    resumed.fit(&mut loader(&plain()), None)?;
    Ok(Some(resumed.hook::<Keeps>().unwrap().0.shallow_clone()))
}

fn in_trial(odd: &Tensor) -> Result<Option<Tensor>> {
    let mut trainer = builder(Carrier::new()).hook(Keeps(odd.shallow_clone())).build()?;
    trainer.find_lr(&mut loader(&plain()), &LearningRateFinder::new().steps(20))?;
    Ok(None)
}

fn gathered(odd: &Tensor) -> Result<Option<Tensor>> {
    let mut all = World::solo().gather_tensors("all", &[("kept".to_owned(), odd.shallow_clone())].into())?;
    Ok(all.remove(0).remove("kept"))
}

fn gathered_alone(odd: &Tensor) -> Result<Option<Tensor>> {
    let all = World::solo().all_gather("kept", odd)?;
    Ok(all.f_squeeze_dim(0).ok())
}

fn gathered_predictions(odd: &Tensor) -> Result<Option<Tensor>> {
    World::solo().gather_predictions("kept", &[odd.shallow_clone()]).map(Some)
}

fn weights(odd: &Tensor) -> Result<Option<Tensor>> {
    let task = || {
        let task = Carrier::new();
        let buffer = task.vars.root().zeros_no_train("kept", &[2, 3]);
        (task, buffer)
    };
    let (carrier, mut buffer) = task();
    let Ok(()) = buffer.f_set_data(odd) else { return Ok(None) };
    let path = scratch("odd-weights").join("weights.safetensors");
    let folder = path.parent().unwrap().to_owned();
    std::fs::create_dir_all(&folder).unwrap();
    let trainer = builder(carrier).run_folder(&folder).tape(Tape::full()).build()?;
    trainer.save_weights(&path)?;
    let mut trainer = trainer;
    trainer.fit(&mut loader(&plain()), None)?;
    let (carrier, buffer) = task();
    if odd.size() != [2, 3] {
        return Ok(None);
    }
    let mut other = builder(carrier).build()?;
    other.load_weights(&path, &LoadWeights::new())?;
    Ok(Some(buffer.shallow_clone()))
}

fn loss(odd: &Tensor) -> Result<Option<Tensor>> {
    let mut carrier = Carrier::new();
    carrier.loss = Some(odd.shallow_clone());
    let mut trainer = builder(carrier).build()?;
    let summary = trainer.validate(&mut loader(&plain()))?;
    Ok(Some(Tensor::from(summary.metrics["valid/loss"])))
}

fn gradient(odd: &Tensor) -> Result<Option<Tensor>> {
    // Only a gradient of the shape, dtype and layout of the parameter can be set, so the guard
    // reads what a hook can put there.
    let odd = Mutex::new(odd.shallow_clone());
    let builder = builder(Carrier::new()).hook(NanGuard::fail()).on::<AfterBackward>("changes", move |cx| {
        cx.grad("fc.bias")?.f_set_data(&odd.lock().unwrap().f_narrow(0, 0, 2)?)?;
        Ok::<_, Error>(())
    });
    fit(builder, &plain())?;
    Ok(None)
}

/// A place that reads tensors: its name, what it reads, what a message about the tensor contains,
/// and what it makes of a plain tensor with the same values.
type Place = (&'static str, fn(&Tensor) -> Result<Option<Tensor>>, &'static [&'static str]);

const PLACES: [Place; 14] = [
    ("log", logged, &["`the value`"]),
    ("log_histogram", histogram, &["`the value`"]),
    ("log_image", image, &["`the value`"]),
    ("the batch on a full tape", batch_on_tape, &["the batch"]),
    ("the description of a batch", described_batch, &[]),
    ("the state of a hook in a checkpoint", |odd| in_checkpoint(odd, false), &["kept"]),
    ("the state of a hook in a background checkpoint", |odd| in_checkpoint(odd, true), &["kept"]),
    ("the state of a hook in a trial", in_trial, &["kept"]),
    ("gather_tensors", gathered, &["kept"]),
    ("all_gather", gathered_alone, &["kept"]),
    ("gather_predictions", gathered_predictions, &["prediction"]),
    ("a variable", weights, &["kept"]),
    ("the loss", loss, &["loss"]),
    ("a gradient", gradient, &["fc.bias", "changes"]),
];

#[test]
fn every_place_reads_the_right_values_or_names_the_tensor() {
    tch::set_num_threads(1);
    let mut wrong = Vec::new();
    let mut cells = 0;
    for (place, read, names) in PLACES {
        for Odd { name, tensor, plain } in odd_tensors(VALUES) {
            cells += 1;
            let mut fails = |why: String| wrong.push(format!("{place}, {name}: {why}"));
            let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| read(&tensor))) else {
                fails("panicked".into());
                continue;
            };
            match outcome {
                Err(error) => {
                    let error = error.to_string();
                    if error.contains("panicked") || !names.iter().any(|name| error.contains(name)) {
                        fails(error);
                    }
                    if name == "plain" && !["log", "the loss", "a gradient"].contains(&place) {
                        fails("a plain tensor is refused".into());
                    }
                }
                Ok(Some(found)) if plain.is_some() => {
                    let expected = read(plain.as_ref().unwrap()).unwrap().unwrap();
                    let is_equal = found.size() == expected.size()
                        && found.kind() == expected.kind()
                        && found.to_dense(None, false).equal(&expected.to_dense(None, false));
                    if !is_equal {
                        fails(format!("{found} instead of {expected}"));
                    }
                }
                Ok(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cells} cells:\n{}", wrong.len(), wrong.join("\n"));
}

/// Trains with a tensor in the batch and in the state of a hook, and returns the path of the tape.
fn tape(name: &str, odd: &Tensor, in_batch: bool) -> PathBuf {
    let folder: &Path = &scratch(name);
    let kept = if in_batch { plain() } else { odd.shallow_clone() };
    let builder = builder(Carrier::new()).run_folder(folder).tape(Tape::full()).hook(Keeps(kept));
    let other = plain();
    fit(builder, if in_batch { odd } else { &other }).unwrap();
    folder.join("run.tape")
}

#[test]
fn a_tape_compares_the_values_of_odd_tensors() {
    let output = child_process("odd_tensors::tapes_in_a_separate_process").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// The random numbers of libtorch, whose state is on a tape, belong to the whole process.
#[test]
#[ignore = "run by another test in a child process"]
fn tapes_in_a_separate_process() {
    tch::set_num_threads(1);
    let others = odd_tensors(VALUES.map(|value| -value));
    for (one, other) in odd_tensors(VALUES).iter().zip(&others) {
        if one.name == "undefined" {
            continue; // it is no tensor
        }
        for in_batch in [true, false] {
            let first = tape("odd-one", &one.tensor, in_batch);
            let again = tape("odd-again", &one.tensor, in_batch);
            let found = difference(&first, &again).unwrap();
            assert!(found.is_empty(), "{}: {found}", one.name);
            if let Some(plain) = &one.plain
                && !one.tensor.requires_grad()
            {
                let found = difference(&first, tape("odd-plain", plain, in_batch)).unwrap();
                assert!(found.is_empty(), "{} and its values: {found}", one.name);
            }
            if !["zero-size", "lazily zero"].contains(&one.name) {
                let found = difference(&first, tape("odd-other", &other.tensor, in_batch)).unwrap();
                assert!(!found.is_empty(), "{} and its negation are equal on the tape", one.name);
            }
        }
    }
}
