//! What loading weights resets, and that the weights that are written are those that were measured.

use std::fs;

use trainer::TrainerBuilder;
use trainer::checkpoint::LoadWeights;
use trainer::finders::LearningRateFinder;
use trainer::hooks::{Ema, Lora, Swa};
use trainer::prelude::*;

use crate::support::{device, scratch};

type Loss = fn(&Tensor, &Tensor) -> Tensor;
type Net = Supervised<nn::SequentialT, Loss>;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_for_logits(labels)
}

fn task() -> Net {
    tch::set_num_threads(1);
    let vs = nn::VarStore::new(device());
    let root = vs.root();
    let net = nn::seq_t()
        .add(nn::linear(&root / "fc1", 4, 6, Default::default()).named("fc1"))
        .add(nn::batch_norm1d(&root / "bn1", 6, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(&root / "fc2", 6, 2, Default::default()));
    Supervised::new(vs, net, loss)
}

fn rows() -> InMemory<(Tensor, Tensor)> {
    let inputs = (Tensor::arange(12 * 4, FLOAT) * 0.37).sin().view([12, 4]);
    let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
    InMemory::new((inputs, labels)).unwrap().batch_size(4)
}

fn builder() -> TrainerBuilder<Net> {
    Trainer::builder(task()).optimizer(Sgd::new(0.5)).discover(Discover::None).epochs(2)
}

fn measured(trainer: &mut Trainer<Net>) -> f64 {
    trainer.validate(&mut rows()).unwrap().metrics.get("valid/loss").unwrap()
}

/// The loss of the weights in a file, in a trainer without averages.
fn loss_of(path: &std::path::Path) -> f64 {
    let mut trainer = builder().build().unwrap();
    trainer.load_weights(path, &LoadWeights::new()).unwrap();
    measured(&mut trainer)
}

type Averaging = fn(TrainerBuilder<Net>) -> TrainerBuilder<Net>;

/// A hook of a user that averages like `Ema`, through the public API.
#[derive(Default)]
struct Own(trainer::Averages);

#[hook(state)]
impl Own {
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        self.0.replace(&cx.vars(), cx.changed_vars())
    }

    #[hook(only(train, valid))]
    fn before_step(&mut self, cx: &mut Cx<BeforeStep>) -> Result<()> {
        if cx.phase() == Phase::Train { self.0.swap_out(&cx.vars()) } else { self.0.swap_in(&cx.vars()) }
    }

    #[hook(only = train)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        self.0.update(&cx.vars(), 0.1, false)
    }

    fn teardown(&mut self, cx: &mut Cx<Teardown>) -> Result<()> {
        self.0.swap_out(&cx.vars())
    }
}

impl trainer::checkpoint::State for Own {
    fn save(&self) -> Result<trainer::checkpoint::Saved> {
        let mut saved = trainer::checkpoint::Saved::new();
        self.0.save(&mut saved)?;
        Ok(saved)
    }

    fn load(&mut self, saved: &trainer::checkpoint::Saved) -> Result<()> {
        self.0 = trainer::Averages::load(saved);
        Ok(())
    }
}

const AVERAGING: [(&str, Averaging); 5] = [
    ("ema", |builder| builder.hook(Ema::new(0.9))),
    ("ema with buffers", |builder| builder.hook(Ema::new(0.9).buffers(true).every(2))),
    ("swa", |builder| builder.hook(Swa::from_epoch(0))),
    ("batch norm update", |builder| builder.hook(Swa::from_epoch(0)).update_batch_norm(rows())),
    ("own", |builder| builder.hook(Own::default())),
];

#[test]
fn the_written_weights_are_those_that_were_measured() {
    let folder = scratch("loaded-weights-measured");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("weights.safetensors");
    for (name, averaging) in AVERAGING {
        let mut trainer = averaging(builder()).build().unwrap();
        let summary = trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
        let shown = summary.metrics.get("valid/loss").unwrap();
        assert_eq!(measured(&mut trainer), shown, "{name}");
        trainer.save_weights(&path).unwrap();
        assert_eq!(loss_of(&path), shown, "{name}");
        // The advice of the notice: the live weights.
        trainer.task().vars().save(folder.join("live.safetensors")).unwrap();
        assert_ne!(loss_of(&folder.join("live.safetensors")), shown, "{name}");
    }
}

/// Replaces the weights of a trainer by those of a file.
type Load = fn(&mut Trainer<Net>, &std::path::Path);

#[test]
fn averages_of_replaced_weights_are_dropped_however_the_weights_were_replaced() {
    let folder = scratch("loaded-weights-replaced");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("other.safetensors");
    let mut other = builder().epochs(5).build().unwrap();
    other.fit(&mut rows(), None).unwrap();
    other.save_weights(&path).unwrap();
    let expected = measured(&mut other);
    let loads: [(&str, Load); 4] = [
        ("load_weights", |trainer, path| {
            trainer.load_weights(path, &LoadWeights::new()).unwrap();
        }),
        ("VarStore::load", |trainer, path| trainer.task_mut().vars_mut().unwrap().load(path).unwrap()),
        ("copies", |trainer, path| {
            let _no_grad = tch::no_grad_guard();
            for (name, value) in Tensor::read_safetensors(path).unwrap() {
                trainer.vars().get(&name).unwrap().copy_(&value);
            }
        }),
        ("load_weights before find_lr", |trainer, path| {
            trainer.load_weights(path, &LoadWeights::new()).unwrap();
            trainer.find_lr(&mut rows(), &LearningRateFinder::new().steps(20)).unwrap();
        }),
    ];
    for (name, averaging) in AVERAGING {
        for (load_name, load) in loads {
            let case = format!("{name}, {load_name}");
            let mut trainer = averaging(builder()).build().unwrap();
            trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
            assert_ne!(measured(&mut trainer), expected, "{case}");
            load(&mut trainer, &path);
            // The file that is written before and after the measurement has the measured score.
            let written = folder.join("written.safetensors");
            trainer.save_weights(&written).unwrap();
            assert_eq!(loss_of(&written), expected, "{case}");
            assert_eq!(measured(&mut trainer), expected, "{case}");
            trainer.save_weights(&written).unwrap();
            assert_eq!(loss_of(&written), expected, "{case}");
            // Training continues, with new averages.
            let summary = trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
            trainer.save_weights(&written).unwrap();
            assert_eq!(loss_of(&written), summary.metrics.get("valid/loss").unwrap(), "{case}");
        }
    }
}

#[test]
fn averages_of_weights_that_did_not_change_are_kept() {
    for (name, averaging) in AVERAGING {
        let mut trainer = averaging(builder()).build().unwrap();
        trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
        let shown = measured(&mut trainer);
        trainer.predict(&mut rows()).unwrap();
        trainer.find_lr(&mut rows(), &LearningRateFinder::new().steps(20)).unwrap();
        assert_eq!(measured(&mut trainer), shown, "{name}");

        // A variable that the program changes by itself has the new value; the others keep theirs.
        {
            let _no_grad = tch::no_grad_guard();
            let _ = trainer.vars().get("fc2.bias").unwrap().fill_(3.0);
        }
        let before = measured(&mut trainer);
        assert_ne!(before, shown, "{name}");
        assert_eq!(measured(&mut trainer), before, "{name}");
    }
}

#[test]
fn hooks_learn_which_variables_were_changed() {
    type Names = std::sync::Arc<std::sync::Mutex<Vec<Vec<String>>>>;
    let names = Names::default();
    let note = Names::clone(&names);
    let mut trainer = builder()
        .on::<Setup>("note", move |cx| {
            note.lock().unwrap().push(cx.changed_vars().map(str::to_owned).collect());
        })
        .build()
        .unwrap();
    trainer.fit(&mut rows(), None).unwrap();
    trainer.validate(&mut rows()).unwrap();
    let zero = |trainer: &Trainer<Net>, name| {
        let _no_grad = tch::no_grad_guard();
        let _ = trainer.vars().get(name).unwrap().fill_(0.0);
    };
    zero(&trainer, "fc1.bias");
    trainer.validate(&mut rows()).unwrap();
    trainer.validate(&mut rows()).unwrap();
    assert_eq!(*names.lock().unwrap(), [vec![], vec![], vec!["fc1.bias".to_owned()], vec![]]);
}

#[test]
fn merged_adapters_are_measured() {
    let mut trainer = builder().hook(Lora::new("fc1", 2)).hook(Ema::new(0.9)).build().unwrap();
    trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
    trainer.hook::<Lora>().unwrap().merge(trainer.vars()).unwrap();
    let path = scratch("loaded-weights-merged").with_extension("safetensors");
    trainer.save_weights(&path).unwrap();
    let how = LoadWeights::new().skip("*lora*");
    let mut plain = builder().build().unwrap();
    plain.load_weights(&path, &how).unwrap();
    let (plain, merged) = (measured(&mut plain), measured(&mut trainer));
    assert!((plain - merged).abs() < 1e-6, "{plain} {merged}");
}

#[test]
fn merged_files_have_the_measured_weights() {
    let folder = scratch("loaded-weights-lora");
    fs::create_dir_all(&folder).unwrap();
    let mut trainer = builder().hook(Lora::new("fc1", 2)).hook(Ema::new(0.9)).build().unwrap();
    let summary = trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
    let shown = summary.metrics.get("valid/loss").unwrap();
    let lora = trainer.hook::<Lora>().unwrap();
    let vars = trainer.eval_vars().unwrap();
    lora.save_merged(&vars, folder.join("merged.safetensors")).unwrap();
    let merged = loss_of(&folder.join("merged.safetensors"));
    assert!((merged - shown).abs() < 1e-5, "{merged} {shown}");
    lora.save_merged(trainer.vars(), folder.join("live.safetensors")).unwrap();
    assert!((loss_of(&folder.join("live.safetensors")) - shown).abs() > 1e-5);
    lora.save_peft(&vars, folder.join("adapter"), "").unwrap();
    assert!(lora.merge(&vars).unwrap_err().to_string().contains("pass `trainer.vars()`"));
}
