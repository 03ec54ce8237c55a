//! SLURM: tasks that `srun` starts, and a job that is requeued.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

use signal_hook::consts::SIGUSR1;
use signal_hook::low_level::raise;
use trainer::checkpoint::Resume;
use trainer::distributed::{Launch, World};
use trainer::hooks::Checkpoint;
use trainer::prelude::*;

use crate::model;
use crate::support::{child_process, scratch};

const FOLDER: &str = "TRAINER_TESTS_SLURM";

/// Trains three epochs of four batches, with SIGUSR1 in the sixth batch.
#[test]
#[ignore = "run by another test in a child process"]
fn job() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut trainer = model::builder()
        .epochs(3)
        .hook(Checkpoint::new(folder).every(Every::Epochs(100)).keep_last(5).requeue(true))
        .resume(Resume::Auto)
        .on::<AfterPred>("signal", |cx| {
            if cx.phase() == Phase::Train && cx.counters().batches_seen == 5 {
                raise(SIGUSR1).unwrap();
            }
        })
        .build()
        .unwrap();
    trainer.fit(&mut model::rows(16), None).unwrap();
}

/// Runs the job with a `scontrol` that records its arguments and ends with `status`.
fn run(folder: &Path, status: u8, vars: &[(&str, &str)]) -> Output {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let scontrol = bin.join("scontrol");
    let log = folder.join("log");
    let checkpoints = folder.join("checkpoints");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> '{}'\nls '{}' >> '{}'\necho 'no such job' >&2\nexit {status}\n",
        log.display(),
        checkpoints.display(),
        log.display()
    );
    fs::write(&scontrol, script).unwrap();
    fs::set_permissions(&scontrol, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::join_paths([bin.as_path(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    let mut command = child_process("slurm::job");
    command.env(FOLDER, &checkpoints).env("PATH", path);
    command.envs(vars.iter().copied()).output().unwrap()
}

#[test]
fn a_job_is_requeued_after_the_checkpoint_that_its_signal_requests() {
    let job = ("SLURM_JOB_ID", "123");
    let array = [job, ("SLURM_ARRAY_JOB_ID", "120"), ("SLURM_ARRAY_TASK_ID", "7")];
    for (vars, status, requeued, warning) in [
        (&[job][..], 0, "requeue 123\n", "requeued the job 123: SLURM ends it"),
        (&array, 0, "requeue 120_7\n", "requeued the job 120_7: SLURM ends it"),
        (
            &[job],
            1,
            "requeue 123\n",
            "`scontrol requeue 123` failed (exit status: 1), so the run continues and SLURM does not start the job again: no such job",
        ),
        (&[], 0, "", "this is not a SLURM job, because `SLURM_JOB_ID` is not set: the run continues"),
    ] {
        let folder = scratch("slurm-requeue");
        let output = run(&folder, status, vars);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(text.contains(warning), "{text}");
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        // The checkpoint was on disk. The signal is noticed before the seventh batch.
        let listed = if requeued.is_empty() { String::new() } else { format!("{requeued}step-00000007\n") };
        assert_eq!(log, listed);
        fs::remove_dir_all(&folder).unwrap();
    }
}

/// Joins the other tasks, and trains with them.
#[test]
#[ignore = "run by another test in a child process"]
fn task() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let launch = Launch::from_env().unwrap().unwrap();
    let world = World::from_env().unwrap();
    let ranks = world.gather("ranks", &world.rank()).unwrap();
    let mut trainer = model::builder().epochs(1).run_folder(folder).build().unwrap();
    let summary = trainer.fit(&mut model::rows(16), None).unwrap();
    println!("{:?} of {ranks:?}: {} samples", launch.launcher(), summary.counters.samples_seen);
}

#[test]
fn tasks_that_srun_starts_on_one_host_train_together_without_an_address() {
    let folder = scratch("slurm-tasks");
    let tasks = [0, 1].map(|rank: u32| {
        let mut command = child_process("slurm::task");
        let id = std::process::id().to_string(); // of the port, too
        command.env("SLURM_STEP_NUM_TASKS", "2").env("SLURM_PROCID", rank.to_string());
        command.env("SLURM_LOCALID", rank.to_string()).env("SLURM_STEP_NUM_NODES", "1");
        command.env("SLURM_JOB_ID", id).env("SLURM_STEP_ID", "0").env("OMP_NUM_THREADS", "1");
        command.env(FOLDER, folder.join("run")).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    });
    for task in tasks {
        let output = task.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("Some(\"SLURM\") of [0, 1]: 16 samples"), "{text}");
    }
    let file = fs::read_to_string(folder.join("run/run.json")).unwrap();
    assert!(file.contains("\"launcher\": \"SLURM, 2 processes\""), "{file}");
    fs::remove_dir_all(&folder).unwrap();
}
