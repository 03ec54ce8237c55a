//! Starting ranks: TCP stores, the variables of launchers, ranks that join late or never.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use signal_hook::consts::SIGKILL;
use signal_hook::low_level::raise;
use trainer::distributed::{Launch, Op, World};
use trainer::prelude::*;
use trainer::testing::{Harness, Ranks, once};

use crate::support::{child_process, in_shell, scratch};

/// Returns a port that no program uses.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// Returns ranks that connect through a TCP store, and whose collectives time out after `seconds`.
fn tcp_ranks(count: u32, seconds: &str) -> Ranks {
    let port = once(free_port);
    let ranks = Ranks::new(count).env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port);
    ranks.env("TRAINER_RANK_TIMEOUT", seconds)
}

fn rank() -> u32 {
    Launch::from_env().unwrap().unwrap().rank()
}

/// Returns the sum of the ranks of all processes.
fn total() -> Result<f64> {
    let world = World::from_env()?;
    let total = Tensor::from(f64::from(world.rank()));
    world.all_reduce("total", &total, Op::Sum)?;
    Ok(total.double_value(&[]))
}

fn errors<R>(results: Result<Vec<Result<R>>>) -> Vec<String> {
    results
        .unwrap()
        .into_iter()
        .map(|result| result.err().map_or_else(String::new, |error| error.to_string()))
        .collect()
}

#[test]
fn ranks_connect_through_a_tcp_store_even_if_one_is_late() {
    let totals = tcp_ranks(3, "60").run(|| {
        if rank() == 0 {
            std::thread::sleep(Duration::from_secs(1)); // rank 0 serves the store
        }
        total()
    });
    assert_eq!(totals.unwrap(), [3.0; 3]);
    let late = Ranks::new(2).run(|| {
        std::thread::sleep(Duration::from_secs(u64::from(rank())));
        Harness::small().run()?.result.map(|summary| summary.counters.samples_seen)
    });
    assert_eq!(late.unwrap(), [16; 2]);
}

#[test]
fn an_occupied_port_is_named_in_the_error() {
    let texts = errors(tcp_ranks(2, "3").results(|| {
        let port = std::env::var("MASTER_PORT").unwrap();
        let _other = (rank() == 0).then(|| TcpListener::bind(format!("127.0.0.1:{port}")).unwrap());
        total()
    }));
    assert!(texts[0].contains("rank 0 of 2 could not connect to the other ranks at 127.0.0.1:"), "{texts:?}");
    assert!(texts[0].contains("EADDRINUSE") && texts[0].contains("no other program uses it"), "{texts:?}");
    assert!(texts[1].contains("rank 1 of 2 could not connect to the other ranks at 127.0.0.1:"), "{texts:?}");
}

#[test]
fn a_rank_that_never_joins_is_an_error_at_the_timeout() {
    for ranks in [tcp_ranks(2, "2"), Ranks::new(2).env("TRAINER_RANK_TIMEOUT", "2")] {
        let texts = errors(ranks.results(|| if rank() == 0 { total() } else { Ok(0.0) }));
        assert!(texts[0].contains("rank 0 of 2 could not connect to the other ranks at"), "{texts:?}");
        assert!(texts[0].contains("(timeout 2s, started by torchrun)"), "{texts:?}");
        assert_eq!(texts[1], "");
    }
}

#[test]
fn losing_the_rank_that_serves_the_store_is_an_error_on_the_other_ranks() {
    let texts = errors(tcp_ranks(3, "30").results(|| {
        let killed = |cx: &mut Cx<AfterBackward>| match (cx.rank(), cx.counters().batches_seen) {
            (0, 2) => raise(SIGKILL).map_err(Error::from),
            _ => Ok(()),
        };
        Harness::small()
            .configure(|builder| builder.on::<AfterBackward>("killed", killed))
            .run()?
            .result
            .map(drop)
    }));
    assert!(texts[0].contains("SIGKILL"), "{texts:?}");
    for rank in [1, 2] {
        assert!(
            texts[rank].contains(&format!("rank {rank} lost contact with the other ranks in `")),
            "{texts:?}"
        );
        assert!(texts[rank].contains("rank 0 did not respond"), "{texts:?}");
        let other = format!("the state of rank {} is unknown, because the store is gone", 3 - rank);
        assert!(texts[rank].contains(&other), "{texts:?}");
    }
}

#[test]
#[ignore = "run by the next test in a child process"]
fn rank_of_a_launcher() {
    println!("the total is {}", total().unwrap());
}

#[test]
fn processes_started_by_slurm_or_mpi_join_as_ranks() {
    let slurm = ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES"];
    let open_mpi = [
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ];
    let mpich = ["PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"];
    for (names, last) in [(slurm, "1"), (open_mpi, "2"), (mpich, "2")] {
        let port = free_port();
        let children = ["0", "1"].map(|rank| {
            let mut child = child_process("ranks_launch::rank_of_a_launcher");
            child.envs(names.into_iter().zip(["2", rank, rank, last])).env("MASTER_PORT", &port);
            child.env("TRAINER_RANK_TIMEOUT", "60").stdout(Stdio::piped()).spawn().unwrap()
        });
        for child in children {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("the total is 1"), "{names:?}: {text}");
        }
    }
}

#[test]
fn a_checkpoint_folder_that_a_rank_cannot_see_is_refused_when_the_fit_begins() {
    let folder = once(|| scratch("ranks-folder"));
    let fit = |own: String| {
        let checkpoint = trainer::hooks::Checkpoint::new(folder.join(own)).every(Every::Steps(2));
        let configure =
            |builder: trainer::TrainerBuilder<_>| builder.resume(trainer::checkpoint::Resume::Auto);
        Harness::small()
            .hook(checkpoint)
            .configure(configure)
            .run()?
            .result
            .map(|summary| summary.counters.batches_seen)
    };
    let texts = errors(Ranks::new(2).results(|| {
        fs::create_dir_all(folder.join(rank().to_string())).unwrap();
        fit(rank().to_string())
    }));
    for text in texts {
        assert!(text.contains("because it does not see the checkpoint folder of rank 0"), "{text}");
    }
    assert_eq!(Ranks::new(2).run(|| fit("shared".to_owned())).unwrap(), [4; 2]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_rank_of_another_job_at_the_same_address_is_refused() {
    let folder = once(|| scratch("ranks-jobs"));
    // Two jobs of two ranks each: the processes 0 and 1, and later the processes 2 and 3.
    let results = tcp_ranks(4, "100").results(|| {
        let process = rank();
        let wait_for = |name: String| {
            while !folder.join(&name).exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        let (job, port) = (
            ["first", "second"][process as usize / 2],
            std::env::var("MASTER_PORT").unwrap().parse().unwrap(),
        );
        if job == "second" {
            wait_for("0".to_owned());
            wait_for("1".to_owned());
        }
        let launch =
            Launch::tcp(process % 2, 2, "127.0.0.1", port).job(job).timeout(Duration::from_secs(100));
        let joined = World::join(&launch);
        fs::write(folder.join(process.to_string()), "")?;
        if job == "first" {
            wait_for("2".to_owned());
            wait_for("3".to_owned());
        }
        let ranks = joined?.gather("ranks", &process)?;
        Ok(ranks)
    });
    let results: Vec<_> =
        results.unwrap().into_iter().map(|result| result.map_err(|error| error.to_string())).collect();
    assert_eq!(results[..2], [Ok(vec![0, 1]), Ok(vec![0, 1])]);
    assert!(results[2].as_ref().unwrap_err().contains("no other program uses it"), "{results:?}");
    let text = results[3].as_ref().unwrap_err();
    let jobs =
        "this process belongs to the job `second`, but the store at this address belongs to the job `first`";
    assert!(text.contains(jobs), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_another_job_has_used_is_refused() {
    let results = Ranks::new(2).results(|| {
        let world = World::from_env()?;
        let file = std::env::var("MASTER_ADDR").unwrap().replace("file://", "") + "-again";
        let first = World::join(&Launch::file(rank(), 2, &file).job("first"))?;
        world.barrier("both have joined")?;
        let second = World::join(&Launch::file(rank(), 2, &file).job("second")).map(drop);
        world.barrier("both have tried")?;
        drop(first);
        second
    });
    for text in errors(results) {
        assert!(
            text.contains(
                "belongs to the job `second`, but the store at this address belongs to the job `first`"
            ),
            "{text}"
        );
    }
}

#[test]
fn a_low_limit_on_open_files_is_raised_or_reported_before_the_ranks_connect() {
    for (limit, is_enough) in [("ulimit -Sn 40", true), ("ulimit -n 40", false)] {
        let folder = scratch("ranks-files");
        let meeting = format!("file://{}", folder.join("meeting").display());
        let children = ["0", "1"].map(|rank| {
            let mut limited = in_shell(limit, &child_process("ranks_launch::rank_of_a_launcher"));
            limited.env("WORLD_SIZE", "2").env("RANK", rank);
            limited.env("MASTER_ADDR", &meeting).env("TRAINER_RANK_TIMEOUT", "60");
            limited.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        for child in children {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success() && text.contains("the total is 1"), is_enough, "{text}");
            let advice = "to connect to 1 other ranks: raise the limit with `ulimit -n ";
            assert_eq!(text.contains("this process may open 40 files, but needs "), !is_enough, "{text}");
            assert_eq!(text.contains(advice), !is_enough, "{text}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}

/// Starts a child process for each list of variables, and returns the output of each.
fn outputs<'a>(children: impl IntoIterator<Item = Vec<(&'a str, &'a str)>>) -> Vec<String> {
    let start = |vars: Vec<(&str, &str)>| {
        let mut child = child_process("ranks_launch::rank_of_a_launcher");
        child.envs(vars).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = children.into_iter().map(start).collect();
    let output = |child: std::process::Child| {
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    children.into_iter().map(output).collect()
}

/// The variables of a rank that are set by hand.
fn by_hand<'a>(rank: &'a str, size: &'a str, seconds: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![("WORLD_SIZE", size), ("RANK", rank), ("TRAINER_RANK_TIMEOUT", seconds)]
}

#[test]
fn a_second_process_with_the_same_rank_is_refused_by_name() {
    let port = free_port();
    let folder = scratch("ranks-claims");
    let file = format!("file://{}", folder.join("meeting").display());
    let tcp = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port)];
    for address in [&tcp[..], &[("MASTER_ADDR", &*file)]] {
        // One rank is missing, so that all processes are still joining.
        let vars = |rank| [by_hand(rank, "3", "60"), address.to_vec()].concat();
        let texts = outputs(["0", "1", "1"].map(vars));
        let expected = " cannot join as rank 1 of 3 at ";
        for text in &texts {
            assert!(
                text.contains(expected) && text.contains(" has already joined as this rank"),
                "{texts:?}"
            );
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn two_jobs_without_an_id_do_not_train_with_each_others_ranks() {
    let folder = once(|| scratch("ranks-two-jobs"));
    // The processes 0 and 1 are one job, and 2 is rank 1 of another one, whose rank 0 found the
    // port in use.
    let results = tcp_ranks(3, "60").results(|| {
        let process = rank();
        let port = std::env::var("MASTER_PORT").unwrap().parse().unwrap();
        let wait_for = |name: &str| {
            while !folder.join(name).exists() {
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        if process == 2 {
            wait_for("0");
            wait_for("1");
        }
        let joined = World::join(&Launch::tcp(process.min(1), 2, "127.0.0.1", port));
        fs::write(folder.join(process.to_string()), "")?;
        wait_for("2");
        joined?.gather("ranks", &process)
    });
    let results: Vec<_> =
        results.unwrap().into_iter().map(|result| result.map_err(|error| error.to_string())).collect();
    assert_eq!(results[..2], [Ok(vec![0, 1]), Ok(vec![0, 1])]);
    assert!(results[2].as_ref().unwrap_err().contains("has already joined as this rank"), "{results:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_restarted_program_does_not_meet_the_processes_of_the_earlier_attempt() {
    let folder = scratch("ranks-restarts");
    let file = format!("file://{}", folder.join("meeting").display());
    let attempt = |rank, seconds, count| {
        let own = [("MASTER_ADDR", &*file), ("TORCHELASTIC_RESTART_COUNT", count)];
        [by_hand(rank, "2", seconds), own.to_vec()].concat()
    };
    let texts = outputs([attempt("0", "1", "0")]);
    assert!(texts[0].contains("1 of 2 ranks have joined; missing: 1"), "{texts:?}");
    // The file of the first attempt is still there.
    let texts = outputs(["0", "1"].map(|rank| attempt(rank, "60", "1")));
    assert!(texts.iter().all(|text| text.contains("the total is 1")), "{texts:?}");
    let texts = outputs([attempt("0", "60", "1")]);
    assert!(texts[0].contains("has already joined as this rank"), "{texts:?}");
    fs::remove_dir_all(folder).unwrap();

    let port = free_port();
    let texts = outputs(["0", "1"].map(|rank| {
        let own =
            [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port), ("TORCHELASTIC_RESTART_COUNT", rank)];
        [by_hand(rank, "2", "60"), own.to_vec()].concat()
    }));
    for text in &texts {
        assert!(text.contains("it was restarted 1 times, but rank 0 was restarted 0 times"), "{texts:?}");
    }
}
