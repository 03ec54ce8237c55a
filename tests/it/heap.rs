//! The heap keeps the memory of tensors while an entry point runs, unless it is not ours to set.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trainer::data::from_fn;
use trainer::{Heap, prelude::*};

use crate::support::{child_process, scratch};

const STEPS: usize = 12;

/// Returns a field of `/proc/self/stat`, counted from 1.
fn stat(field: usize) -> u64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap();
    let rest = text.rsplit_once(')').unwrap().1;
    rest.split_whitespace().nth(field - 3).unwrap().parse().unwrap()
}

/// The number of page faults of this process that read nothing from a disk.
fn minor_faults() -> u64 {
    stat(10)
}

/// The memory of this process that is in RAM, in bytes.
fn resident() -> u64 {
    stat(24) * 4096
}

/// What [`train`] found.
struct Found {
    /// The minor faults of the last half of the steps.
    faults: u64,
    loss: f64,
    /// The memory in RAM at the end of the fit.
    resident: u64,
}

/// Trains with activations of 1 MB.
fn train(heap: Heap, folder: Option<&Path>) -> Found {
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let mut net = nn::seq();
    for layer in 0..4 {
        net = net.add(nn::layer_norm(&root / layer, vec![1024], Default::default())).add_fn(Tensor::relu);
    }
    let task =
        Supervised::new(vs, net, |pred: &Tensor, target: &Tensor| pred.mse_loss(target, Reduction::Mean));
    let counted = Arc::new(Mutex::new(Vec::new()));
    let counts = counted.clone();
    let at_end = Arc::new(AtomicU64::new(0));
    let end = at_end.clone();
    let mut builder = Trainer::builder(task)
        .optimizer(Sgd::new(0.01))
        .heap(heap)
        .on::<AfterStep>("faults", move |_| counts.lock().unwrap().push(minor_faults()))
        .on::<AfterFit>("memory", move |_| end.store(resident(), Ordering::Relaxed));
    if let Some(folder) = folder {
        builder = builder.run_folder(folder);
    }
    let batch = (
        Tensor::arange(256 * 1024, (Kind::Float, Device::Cpu)).sin().view([256, 1024]),
        Tensor::zeros([256, 1024], (Kind::Float, Device::Cpu)),
    );
    let mut batches = from_fn(|_| (0..STEPS).map(|_| (batch.0.shallow_clone(), batch.1.shallow_clone())));
    let summary = builder.build().unwrap().fit(&mut batches, None).unwrap();
    let counted = counted.lock().unwrap();
    Found {
        faults: counted[STEPS - 1] - counted[STEPS / 2 - 1],
        loss: summary.metrics["train/loss"],
        resident: at_end.load(Ordering::Relaxed),
    }
}

#[test]
#[ignore = "run by the tests below in a process of its own"]
fn trains() {
    let folder = PathBuf::from(std::env::var_os("FOLDER").unwrap());
    let system = train(Heap::System, None);
    let kept = train(Heap::Keep, Some(&folder));
    let returned = kept.resident.saturating_sub(resident()) >> 20;
    let both = std::thread::scope(|scope| {
        let other = scope.spawn(|| train(Heap::Keep, None));
        [train(Heap::Keep, None), other.join().unwrap()]
    });
    for found in [&kept, &both[0], &both[1]] {
        assert_eq!(found.loss.to_bits(), system.loss.to_bits());
    }
    fs::write(folder.join("found"), format!("{} {} {returned}", system.faults, kept.faults)).unwrap();
}

/// Trains in a child process with these variables. Returns the minor faults with [`Heap::System`]
/// and with [`Heap::Keep`], the memory that the entry point then returned, in MB, and what
/// `run.json` says.
fn found(name: &str, variables: &[(&str, &str)]) -> ([u64; 3], String) {
    let folder = scratch(name);
    let mut child = child_process("heap::trains");
    child.env("FOLDER", &folder).envs(variables.iter().copied());
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(folder.join("found")).unwrap();
    let numbers: Vec<_> = text.split(' ').map(|number| number.parse().unwrap()).collect();
    let file: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("run.json")).unwrap()).unwrap();
    (numbers.try_into().unwrap(), file["settings"]["heap"].as_str().unwrap().to_owned())
}

#[test]
#[cfg_attr(not(all(target_os = "linux", target_env = "gnu")), ignore = "needs glibc")]
fn a_step_takes_its_memory_from_the_heap_which_an_entry_point_returns() {
    let ([system, kept, returned], text) = found("heap", &[]);
    println!("{system} faults by default, {kept} with a heap that keeps; {returned} MB returned");
    assert_eq!(text, "keeps freed memory");
    // Each step has at least 12 tensors of 1 MB, which is 256 pages.
    assert!(kept < 256 * 12 * STEPS as u64 / 8, "{kept} faults");
    assert!(returned > 4, "{returned} MB were returned");
}

#[test]
#[cfg_attr(not(all(target_os = "linux", target_env = "gnu")), ignore = "needs glibc")]
fn a_heap_that_somebody_has_set_is_left_alone() {
    // With these, glibc maps each tensor, as `Keep` would not.
    for (name, value) in
        [("MALLOC_MMAP_THRESHOLD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")]
    {
        let ([system, kept, ..], text) = found("heap-set", &[(name, value)]);
        assert_eq!(text, format!("unchanged: {name} is set"));
        assert!(system.min(kept) > 256 * 12 * STEPS as u64 / 4, "{name}: {system} and {kept} faults");
    }
}
