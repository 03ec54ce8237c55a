//! Helpers that several test modules share: scratch folders, child processes, random numbers, exact
//! comparisons.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use trainer::cuda::{self, CudaSupport};
use trainer::distributed::Launch;
use trainer::prelude::*;
use trainer::{CancelToken, TrainerBuilder};

/// Returns the path of a new, empty folder for one test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("trainer-tests-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the device of the models and the data of the tests: the CPU, or that which the environment
/// variable `TRAINER_DEVICE` names, `cuda` or `cuda:1`. Without a GPU, says why, and returns the CPU.
/// Several processes that train together stay on the CPU: on a GPU, each needs its own.
pub(crate) fn device() -> Device {
    static CHOSEN: LazyLock<Device> = LazyLock::new(|| {
        let Ok(name) = std::env::var("TRAINER_DEVICE") else { return Device::Cpu };
        let nth = match name.as_str() {
            "cpu" => return Device::Cpu,
            "cuda" => Some(0),
            _ => name.strip_prefix("cuda:").and_then(|nth| nth.parse().ok()),
        };
        let nth = nth.unwrap_or_else(|| panic!("TRAINER_DEVICE={name}: expected `cpu`, `cuda` or `cuda:1`"));
        if !matches!(Launch::from_env(), Ok(None)) {
            return Device::Cpu;
        }
        match cuda::support() {
            CudaSupport::Ready => Device::Cuda(nth),
            missing => {
                // The test harness captures what the macros print. Child processes run ignored tests,
                // and their output is compared.
                if !std::env::args().any(|argument| argument == "--ignored") {
                    let note =
                        format!("TRAINER_DEVICE={name}: skipped, the tests run on the CPU: {missing}\n");
                    std::io::stderr().write_all(note.as_bytes()).unwrap();
                }
                Device::Cpu
            }
        }
    });
    *CHOSEN
}

/// Returns everything below a folder by path: links with their target, files with their content.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_symlink() {
            found.insert(path.clone(), format!("-> {}", fs::read_link(&path).unwrap().display()));
        } else if kind.is_dir() {
            found.insert(path.clone(), "folder".to_owned());
            found.extend(tree(&path));
        } else if kind.is_file() {
            found.insert(path.clone(), format!("{:?}", fs::read(&path).unwrap()));
        } else {
            found.insert(path.clone(), "special".to_owned());
        }
    }
    found
}

/// Serializes a manifest, with its field `blake3` set to the hash of the others.
pub(crate) fn sealed(mut manifest: serde_json::Value) -> String {
    manifest.as_object_mut().unwrap().remove("blake3");
    let hash = blake3::hash(manifest.to_string().as_bytes()).to_hex().to_string();
    manifest["blake3"] = hash.into();
    manifest.to_string()
}

/// Returns the warnings of an entry point, without the one about another test that trains at the
/// same time in this process.
pub(crate) fn own_warnings(summary: &trainer::Summary) -> Vec<String> {
    summary.warnings.iter().filter(|text| !text.contains("run at the same time")).cloned().collect()
}

/// Returns a command that runs one ignored test of this program in a separate process. The variables of
/// a launcher that are set for it make it a rank.
pub(crate) fn child_process(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(CHILD, "1");
    command
}

/// Returns a command with a shell that runs `script` and then becomes a child process.
pub(crate) fn in_shell(script: &str, child: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("{script} && exec \"$0\" \"$@\""))
        .arg(child.get_program())
        .args(child.get_args());
    shell.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell
}

/// Whether this process and its child processes ignore SIGHUP, as below `nohup`: then a test that
/// sends it is skipped, with a note.
pub(crate) fn ignores_hangups() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignores = mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1);
    if ignores {
        std::io::stderr().write_all(b"skipped: SIGHUP is ignored, as below `nohup`\n").unwrap();
    }
    ignores
}

/// The environment variable that marks a child process: a test decides whether it is a rank.
pub(crate) const CHILD: &str = "TRAINER_TESTS_CHILD";

/// The environment variable that `trainer::testing::Ranks` sets for its ranks.
const OF_RANKS: &str = "TRAINER_TEST_RANKS";

/// The variables that launchers set in the processes of a job: names, and prefixes that end with
/// `_`. The Makefile has the same.
pub(crate) const LAUNCHERS: [&str; 12] = [
    "I_MPI_HYDRA_UUID",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MPI_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "RANK",
    "SLURM_",
    "TORCHELASTIC_",
    "WORLD_SIZE",
];

/// Returns whether a launcher sets the variable.
pub(crate) fn is_set_by_launcher(variable: &str) -> bool {
    LAUNCHERS.iter().any(|own| variable == *own || (own.ends_with('_') && variable.starts_with(own)))
}

/// Removes the variables of launchers before the tests start. Otherwise, tests that run in a job, as
/// in a step of SLURM with several tasks, would wait for its other ranks.
#[ctor::ctor(unsafe)]
#[allow(unsafe_code)]
fn leave_the_job() {
    if [CHILD, OF_RANKS].iter().any(|mark| std::env::var_os(mark).is_some()) {
        return;
    }
    for (name, _) in std::env::vars_os() {
        if is_set_by_launcher(&name.to_string_lossy()) {
            // SAFETY: this runs before `main`, when the process has one thread.
            unsafe { std::env::remove_var(name) };
        }
    }
}

/// Pseudorandom numbers (xorshift) that are the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap()
    }
}

/// Returns a builder with a hook that cancels the run after training batch `at`, counted from 1.
/// With `None`, the run is not cancelled.
pub(crate) fn cancelled_at<T: Task>(at: Option<u64>, builder: TrainerBuilder<T>) -> TrainerBuilder<T> {
    let token = CancelToken::new();
    builder.cancel_token(token.clone()).on::<AfterStep>("cancel", move |cx| {
        if cx.phase() == Phase::Train && Some(cx.counters().batches_seen) == at {
            token.cancel();
        }
    })
}

/// Returns every variable and all state of the optimizer, as exact bits.
pub(crate) fn exact_state(trainer: &Trainer<impl Task>) -> Vec<(String, Vec<u64>)> {
    let vars = trainer.vars().iter().map(|var| (var.name.clone(), var.tensor.shallow_clone()));
    let all = vars.chain(trainer.optimizer().unwrap().state());
    all.map(|(name, tensor)| {
        let values: Vec<f64> = Vec::try_from(&tensor.to_kind(Kind::Double).view([-1])).unwrap();
        (name, values.into_iter().map(f64::to_bits).collect())
    })
    .collect()
}

/// Returns a copy of every parameter.
pub(crate) fn parameters(trainer: &Trainer<impl Task>) -> Vec<Tensor> {
    trainer.vars().parameters().map(|var| var.tensor.copy()).collect()
}

/// Returns a copy of all parameters as one vector.
pub(crate) fn flat_parameters(trainer: &Trainer<impl Task>) -> Tensor {
    let flat: Vec<_> = trainer.vars().parameters().map(|var| var.tensor.view([-1])).collect();
    Tensor::cat(&flat, 0)
}

/// Returns the largest absolute difference between two tensors.
pub(crate) fn distance(one: &Tensor, other: &Tensor) -> f64 {
    (one - other).abs().max().double_value(&[])
}

/// Returns the norm of all gradients together.
pub(crate) fn gradient_norm<P: trainer::lifecycle::HasGrads>(cx: &Cx<P>) -> f64 {
    cx.grads().map(|(_, grad)| grad.square().sum(Kind::Double).double_value(&[])).sum::<f64>().sqrt()
}

/// Runs a test in a process of its own, because libtorch has one generator for all threads.
pub(crate) fn alone(test: fn()) {
    let test = || {
        test();
        Ok(())
    };
    trainer::testing::Ranks::new(1).timeout(std::time::Duration::from_secs(600)).run(test).unwrap();
}
