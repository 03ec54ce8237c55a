//! A run that is killed and resumed ends bit for bit like an uninterrupted one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trainer::checkpoint::{Saved, State};
use trainer::hooks::{Checkpoint, EarlyStopping, LrSchedule, ReduceOnPlateau};
use trainer::prelude::*;
use trainer::schedule::Cosine;

use crate::support::{self, Random, scratch};

/// Averages of the weights, which replace the weights in validation.
#[derive(Default)]
struct Ema(BTreeMap<String, Tensor>);

impl Ema {
    /// Replaces the weights with their averages. Returns each weight with a copy of its live value.
    fn swap(&self, vars: &trainer::Vars) -> Vec<(Tensor, Tensor)> {
        let _guard = tch::no_grad_guard();
        let mut live = Vec::new();
        for var in vars.parameters() {
            if let Some(average) = self.0.get(&var.name) {
                let mut weight = var.tensor.shallow_clone();
                live.push((weight.shallow_clone(), weight.copy()));
                weight.copy_(average);
            }
        }
        live
    }
}

/// The averages are updated after a checkpoint is requested, and the checkpoint must contain the
/// update.
#[hook(ord = 20, state)]
impl Ema {
    fn after_opt_step(&mut self, cx: &mut Cx<AfterOptStep>) {
        let _guard = tch::no_grad_guard();
        for var in cx.vars().parameters() {
            let average = self.0.entry(var.name.clone()).or_insert_with(|| var.tensor.copy());
            *average = &*average * 0.9 + &var.tensor * 0.1;
        }
    }

    #[hook(around = valid)]
    fn averaged(&mut self, cx: &mut Cx<Valid>, next: Next<Valid>) -> Result<()> {
        let live = self.swap(&cx.vars());
        next.run_then(cx, move |_| {
            let _guard = tch::no_grad_guard();
            for (mut weight, value) in live {
                weight.copy_(&value);
            }
        })
    }
}

impl State for Ema {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        for (name, average) in &self.0 {
            saved.tensor(name, average)?;
        }
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.0 = saved.tensors().map(|(name, average)| (name.to_owned(), average.copy())).collect();
        Ok(())
    }
}

/// Counts the points that fire, with state that serde saves.
#[derive(Debug, Default, Deserialize, PartialEq, Serialize)]
struct Counts {
    moments: BTreeMap<String, u64>,
    worst: f64,
}

#[hook(state)]
impl Counts {
    fn before_fit(&mut self, _: &mut Cx<BeforeFit>) {
        self.worst = f64::NEG_INFINITY;
        *self.moments.entry("before_fit".into()).or_default() += 1;
    }
    fn before_epoch(&mut self, _: &mut Cx<BeforeEpoch>) {
        *self.moments.entry("before_epoch".into()).or_default() += 1;
    }
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
        *self.moments.entry(format!("after_step {}", cx.phase())).or_default() += 1;
        self.worst = self.worst.max(cx.step_loss().unwrap().double_value(&[]));
    }
    fn before_valid(&mut self, _: &mut Cx<BeforeValid>) {
        *self.moments.entry("before_valid".into()).or_default() += 1;
    }
    fn after_valid(&mut self, _: &mut Cx<AfterValid>) {
        *self.moments.entry("after_valid".into()).or_default() += 1;
    }
}

/// Returns a network with buffers and random numbers: convolution, batch norm and dropout.
fn net(root: &nn::Path<'_>) -> nn::SequentialT {
    let same = nn::ConvConfig { padding: 1, ..Default::default() };
    nn::seq_t()
        .add(nn::conv2d(root / "conv", 1, 4, 3, same))
        .add(nn::batch_norm2d(root / "bn", 4, Default::default()))
        .add_fn(|xs| xs.relu().flatten(1, -1))
        .add_fn_t(|xs, train| xs.dropout(0.3, train))
        .add(nn::linear(root / "fc", 4 * 16, 3, Default::default()))
}

fn data(rows: i64, seed: i64) -> (Tensor, Tensor) {
    let inputs = Tensor::arange(rows * 16, (Kind::Float, Device::Cpu)).view([rows, 1, 4, 4]);
    ((inputs * 0.7 + seed).sin(), (Tensor::arange(rows, (Kind::Int64, Device::Cpu)) * seed).remainder(3))
}

/// The environment variable with the folder of the child process.
const FOLDER: &str = "TRAINER_TESTS_FOLDER";
const EPOCHS: u64 = 12;

/// The program that is killed. It writes its final state to `end.json`.
#[test]
#[ignore = "run by the other tests in a child process"]
fn child_process() {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    tch::set_num_threads(1);
    tch::manual_seed(7);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = net(&vs.root());
    if trainer::checkpoint::newest(folder.join("checkpoints")).is_some() {
        // A resumed run must use the random state of the checkpoint, not the one of the process.
        tch::manual_seed(i64::from(std::process::id()));
    }
    let task =
        Supervised::new(vs, net, |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels));
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .epochs(EPOCHS)
        .accumulate(3)
        .clip_grad_norm(0.5)
        .validate_every(Every::Fraction(0.5))
        .hook(Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(2)).keep_last(2))
        .hook(EarlyStopping::new("valid/loss", Goal::Minimize).patience(2 * EPOCHS))
        .hook(LrSchedule::new(Cosine::to(0.0).warm_up(0.1)))
        .hook(ReduceOnPlateau::new("valid/loss", Goal::Minimize).patience(1))
        .hook(Ema::default())
        .hook(Counts::default())
        .on::<AfterTransfer>("slow", |_| std::thread::sleep(Duration::from_millis(1)))
        .resume(Resume::Auto)
        .build()
        .unwrap();
    let mut train = InMemory::new(data(90, 5)).unwrap().batch_size(8).shuffle(3);
    let mut valid = InMemory::new(data(30, 11)).unwrap().batch_size(8);
    let summary = trainer.fit(&mut train, Some(&mut valid)).unwrap();

    let mut end: BTreeMap<String, String> = BTreeMap::new();
    let mut note = |name: String, tensor: &Tensor| {
        let bits: Vec<f64> = Vec::try_from(&tensor.to_kind(Kind::Double).view([-1])).unwrap();
        end.insert(name, bits.iter().map(|it| format!("{:x}", it.to_bits())).collect());
    };
    for var in trainer.vars().iter() {
        note(var.name.clone(), &var.tensor);
    }
    for (name, tensor) in trainer.optimizer().unwrap().state() {
        note(name, &tensor);
    }
    for (name, average) in &trainer.hook::<Ema>().unwrap().0 {
        note(format!("ema {name}"), average);
    }
    end.insert("step".into(), format!("{:?}", summary.counters));
    end.insert("metrics".into(), format!("{:?}", summary.metrics));
    end.insert("history".into(), format!("{:?}", summary.history));
    end.insert("counts".into(), format!("{:?}", trainer.hook::<Counts>().unwrap()));
    end.insert("lrs".into(), format!("{:?}", trainer.optimizer().unwrap().groups()[0].lr));
    end.insert("best".into(), format!("{:?}", trainer.hook::<EarlyStopping>().unwrap().best()));
    std::fs::write(folder.join("end.json"), serde_json::to_string_pretty(&end).unwrap()).unwrap();
}

fn spawn_child(folder: &Path) -> Child {
    support::child_process("resume::child_process")
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the child process and returns the final state that it wrote.
fn final_state(child: Child, folder: &Path) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(folder.join("end.json")).unwrap()
}

#[test]
fn a_run_killed_at_random_moments_resumes_bit_for_bit() {
    let uninterrupted = scratch("whole");
    let expected = final_state(spawn_child(&uninterrupted), &uninterrupted);

    let kills: u64 = std::env::var("TRAINER_SOAK").map_or(4, |kills| kills.parse().unwrap());
    let (mut killed, mut random, mut runs) = (0, Random(88_172_645_463_325_252), 0);
    while killed < kills {
        let folder = scratch("killed");
        runs += 1;
        loop {
            let mut child = spawn_child(&folder);
            std::thread::sleep(Duration::from_millis(120 + random.below(250) as u64));
            if child.try_wait().unwrap().is_some() {
                assert_eq!(final_state(child, &folder), expected, "after {killed} kills");
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            killed += 1;
            if killed == kills {
                assert_eq!(final_state(spawn_child(&folder), &folder), expected, "after {killed} kills");
                break;
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
    println!("{killed} kills in {runs} runs");
    std::fs::remove_dir_all(&uninterrupted).unwrap();
}
