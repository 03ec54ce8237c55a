//! Training in several processes: the same results as in one process, common decisions,
//! checkpoints, failures.

use std::fs;
use std::path::Path;

use trainer::testing::once;

use crate::ranks_support::{close, completed, errors, same_as_one};
use crate::support::scratch;

#[test]
fn losses_on_any_number_of_ranks_match_a_single_process() {
    // The last of seven batches has one row. With three rows, four of seven ranks have none.
    let scenes =
        ["plain", "accumulate=3", "tokens accumulate=2", "turns accumulate=2", "gan", "batch=3 epochs=1"];
    same_as_one(&scenes, &[2, 3, 4, 7]);
}

#[test]
fn hooks_and_loaders_on_several_ranks_match_a_single_process() {
    let hooks = [
        "unused find_unused batch=14",
        "never_used find_unused",
        "replaced",
        "penalty batch=14",
        "noise",
        "ema",
        "swa",
        "bf16 epochs=2",
        "early",
        "plateau",
        "twice_the_rows",
    ];
    let loaders = ["stream", "per_rank", "named"];
    same_as_one(&[&hooks[..], &loaders].concat(), &[3]);
}

#[test]
fn compressed_gradients_are_rounded_and_equal_on_all_ranks() {
    let alone = completed(1, "plain", &[]);
    let together = completed(3, "compressed", &[]);
    assert!(!close(&together.losses, &alone.losses, 1e-9));
    assert!(close(&together.losses, &alone.losses, 1e-2), "{:?} {:?}", together.losses, alone.losses);
    for text in errors(2, "compressed_to_int", &[]) {
        assert!(text.contains("gradients cannot be compressed to Int"), "{text}");
    }
}

#[test]
fn a_request_by_one_rank_takes_effect_on_all_ranks_at_the_same_step() {
    for (scene, batches, stopped) in [
        ("stop=1 at=10", 10, Some("one rank has seen enough")),
        ("end=1 at=3", 31, None),
        ("skip=1 at=3", 34, None),
    ] {
        let outcome = completed(2, scene, &[]);
        assert_eq!(outcome.counters[2], batches, "{scene}");
        assert_eq!(outcome.stopped.as_deref(), stopped, "{scene}");
    }
}

#[test]
fn an_error_or_a_panic_on_one_rank_ends_the_other_ranks_with_its_message() {
    for scene in ["error=1", "panic=0"] {
        for (rank, text) in errors(3, scene, &[]).iter().enumerate() {
            let cause = usize::from(scene == "error=1");
            if rank != cause {
                assert!(
                    text.contains(&format!("another rank ended with an error: rank {cause}: ")),
                    "{text}"
                );
                assert!(text.contains("the disk is on fire"), "{text}");
                assert!(text.contains("before_step, epoch 1, batch 3"), "{text}");
            }
        }
    }
}

#[test]
fn the_other_ranks_end_when_a_rank_is_killed_or_hangs() {
    for (scene, timeout) in [("kill=1", "60"), ("hang=0", "5")] {
        let errors = errors(2, scene, &[("TRAINER_RANK_TIMEOUT", timeout)]);
        let lost = usize::from(scene == "kill=1");
        let signal = ["it was stopped by a signal", "(signal: 9 (SIGKILL))"][lost];
        assert!(errors[lost].contains(signal), "{}", errors[lost]);
        let text = &errors[1 - lost];
        assert!(
            text.contains(&format!("rank {} lost contact with the other ranks in `", 1 - lost)),
            "{text}"
        );
        assert!(text.contains(&format!("rank {lost} did not respond")), "{text}");
    }
}

#[test]
fn differences_between_ranks_are_reported() {
    for (scene, expected) in [
        ("other_data=1", "the ranks differ in their training data: `97 rows"),
        ("other_content=1", "the ranks differ in their training data: `97 rows, batch size "),
        (
            "other_settings=1",
            "rank 1 differs from rank 0: use the same settings, optimizers and hooks on all ranks:\n- `.max_steps(…)` is ",
        ),
        (
            "other_model=1",
            "the ranks differ in their variables of the model: only rank 1 has `extra Double [3]`",
        ),
        ("other_hooks=1", "- the hook `lonely at after_step` is missing on rank 0, but present on rank 1"),
        ("other_rate=1", "\n- `optimizer.lr` is 0.01 on rank 0, but 0.02 on rank 1"),
        ("other_decay=1", "\n- `trainer::hooks::Ema.decay` is 0.9 on rank 0, but 0.8 on rank 1"),
        (
            "diverge=1",
            "no longer train the same model: before this evaluation, `left.weight` on rank 1 differs from rank 0",
        ),
        (
            "turns lonely_collective=1",
            "rank 0 is at `barrier(\"the gradients of left\")` in `trainer::hooks::DataParallel::reduce`",
        ),
        ("lonely_name=1", "rank 1 has logged `train/lonely` in this pass, and rank 0 has not"),
        (
            "never_used",
            "if the loss does not depend on all of them, add `.hook(DataParallel::new().find_unused(true))`",
        ),
        ("unused", "add `.hook(DataParallel::new().find_unused(true))`"),
        (
            "stream whole",
            "2 processes train together, but this loader does not divide its batches among them",
        ),
    ] {
        for text in errors(2, scene, &[]) {
            assert!(text.contains(expected), "{scene}: {text}");
        }
    }
}

pub(crate) fn folder_var(folder: &Path) -> [(&'static str, &str); 1] {
    [("TRAINER_TESTS_FOLDER", folder.to_str().unwrap())]
}

#[test]
fn weights_that_differ_are_reported_instead_of_written_to_a_checkpoint() {
    let folder = once(|| scratch("diverged"));
    for text in errors(2, "diverge=1", &folder_var(&folder)) {
        assert!(
            text.contains("before this checkpoint was written, `left.weight` on rank 1 differs"),
            "{text}"
        );
    }
    once(|| fs::remove_dir_all(&folder).unwrap());
}

#[test]
fn ranks_may_differ_in_hooks_that_run_only_on_rank_0() {
    completed(2, "main_hook=0 epochs=1", &[]);
}

#[test]
fn killed_and_cancelled_ranks_resume_bit_identically() {
    for hooks in ["accumulate=3", "accumulate=3 local"] {
        let uninterrupted = completed(2, hooks, &[]);
        for interruption in ["kill=1 at=17", "token=1 at=17 return", "kill=0 at=17 background"] {
            let scene = format!("{hooks} {interruption}");
            let folder = once(|| scratch("distributed-resume"));
            let vars = folder_var(&folder);
            errors(2, &scene, &vars);
            let resumed = completed(2, hooks, &vars);
            assert!(resumed.weights == uninterrupted.weights, "{scene}");
            assert_eq!(resumed.losses, uninterrupted.losses, "{scene}");
            assert_eq!(resumed.metrics, uninterrupted.metrics, "{scene}");
            once(|| fs::remove_dir_all(&folder).unwrap());
        }
    }
}

#[test]
fn a_different_number_of_ranks_resumes_inexactly_on_the_same_data() {
    let alone = completed(1, "accumulate=3", &[]);
    let folder = once(|| scratch("distributed-elastic"));
    let vars = folder_var(&folder);
    // In the middle of an accumulation window.
    errors(2, "token=1 at=10 accumulate=3 return", &vars);
    let refused = errors(3, "accumulate=3", &vars);
    assert!(
        refused[0]
            .contains("the checkpoint was written by 2 processes that trained together, but there are 3 now"),
        "{refused:?}"
    );
    errors(3, "token=2 at=17 accumulate=3 return inexact", &vars);
    let resumed = completed(1, "accumulate=3 inexact", &vars);
    assert!(close(&resumed.losses, &alone.losses, 1e-9), "{:?} {:?}", resumed.losses, alone.losses);
    assert_eq!(resumed.counters, alone.counters);
    let names: Vec<_> = resumed.metrics.iter().zip(&alone.metrics).collect();
    for ((name, one), (_, other)) in names {
        assert!((one - other).abs() < 1e-9, "{name}: {one} {other}");
    }
    once(|| fs::remove_dir_all(&folder).unwrap());
}

#[test]
fn invalid_environment_variables_are_named_when_the_trainer_is_built() {
    for (name, value, expected) in [
        ("RANK", "x", "the environment variable `RANK` is `x`: expected a number"),
        ("RANK", "2", "`RANK` is 2, but `WORLD_SIZE` is 2: expected a rank from 0 to 1"),
        ("MASTER_ADDR", "127.0.0.1", "the environment variable `MASTER_PORT` is not set"),
    ] {
        for text in errors(2, "plain", &[(name, value)]) {
            assert!(text.contains(expected), "{text}");
        }
    }
}
