//! `testing::Ranks`: a test on several ranks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use signal_hook::consts::SIGKILL;
use signal_hook::low_level::raise;
use trainer::distributed::{Launch, Op, World};
use trainer::prelude::*;
use trainer::testing::{Harness, Ranks, once};

use crate::support::{child_process, scratch};

fn world() -> World {
    World::from_env().unwrap()
}

#[test]
fn values_of_all_ranks_are_returned_in_rank_order() {
    let values = Ranks::new(3)
        .env("TRAINER_TESTS_GREETING", "hello")
        .run(|| {
            let total = Tensor::from(f64::from(world().rank()));
            world().all_reduce("total", &total, Op::Sum)?;
            let greeting = std::env::var("TRAINER_TESTS_GREETING").unwrap();
            Ok((world().rank(), total.double_value(&[]), f64::NAN, tch::get_num_threads(), greeting))
        })
        .unwrap();
    for (rank, (own, total, nan, threads, greeting)) in (0..).zip(values) {
        assert_eq!((own, total, threads, greeting.as_str()), (rank, 3.0, 1, "hello"));
        assert!(nan.is_nan());
    }
}

/// The largest activation in a pass over the validation data, as in the guide.
#[derive(Default)]
struct Largest(f64);

#[hook]
impl Largest {
    #[hook(only = valid)]
    fn after_step(&mut self, cx: &mut Cx<AfterStep>) -> Result<()> {
        self.0 = self.0.max(cx.pred::<Tensor>()?.abs().max().double_value(&[]));
        Ok(())
    }
    fn after_valid(&mut self, cx: &mut Cx<AfterValid>) -> Result<()> {
        let largest = Tensor::from(std::mem::take(&mut self.0));
        cx.world().all_reduce("largest", &largest, Op::Max)?;
        cx.log("largest", &largest);
        Ok(())
    }
}

#[test]
fn a_hook_logs_the_same_value_on_one_rank_and_on_several() -> Result<()> {
    let logged = Ranks::new(3).run(|| {
        let outcome = Harness::small().hook(Largest::default()).run()?;
        Ok(outcome.summary().metrics["valid/largest"])
    })?;
    assert_eq!(logged, [logged[0]; 3]);
    let alone = Harness::small().hook(Largest::default()).run()?;
    assert!((alone.summary().metrics["valid/largest"] - logged[0]).abs() < 1e-6);
    Ok(())
}

#[test]
fn ranks_started_later_get_the_results_of_earlier_calls() {
    let seed = once(std::process::id);
    let one = Ranks::new(1).run(|| Ok((seed, World::from_env()?.size() == 1))).unwrap();
    assert_eq!(one, [(seed, true)]);
    let failed = Ranks::new(1).run(|| if seed > 0 { Err(Error::msg("no luck")) } else { Ok(()) });
    let failed = failed.unwrap_err().to_string();
    let two =
        Ranks::new(2).run(|| Ok((world().gather("ids", &std::process::id())?, one[0].0, failed.clone())));
    for (ids, first, error) in two.unwrap() {
        assert_ne!(ids[0], ids[1]);
        assert_eq!(first, seed);
        assert_eq!(error, "1 of 1 ranks failed:\n- rank 0: no luck");
    }
}

#[test]
fn the_error_names_each_rank_that_failed_and_why() {
    let left = once(|| scratch("left-the-barrier"));
    let results = Ranks::new(4)
        .results(|| {
            world().barrier("test")?; // a rank that dies while the others connect has another message
            fs::write(left.join(world().rank().to_string()), "")?; // or before they have left this barrier
            while fs::read_dir(&left)?.count() < 4 {
                std::thread::sleep(Duration::from_millis(5));
            }
            match world().rank() {
                1 => panic!("the disk is on fire"),
                2 => raise(SIGKILL).map_err(Error::from),
                3 => Err(Error::msg("no more rows")),
                _ => world().barrier("test"),
            }
        })
        .unwrap();
    let errors: Vec<String> = results.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    // Rank 0 waits in a collective, and reports the error of the first rank that left.
    let of_rank_0 = [
        "another rank ended with an error: rank ",
        "rank 0 lost contact with the other ranks in `barrier(\"test\")`",
    ];
    assert!(of_rank_0.iter().any(|text| errors[0].contains(text)), "{errors:?}");
    assert_eq!(errors[1], "rank 1: panicked: the disk is on fire");
    assert_eq!(errors[2], "rank 2: it ended without a result (signal: 9 (SIGKILL))");
    assert_eq!(errors[3], "rank 3: no more rows");
    let error = Ranks::new(2).run(|| {
        let connected = left.join("connected");
        if world().rank() == 0 {
            return Ok(fs::write(connected, "")?);
        }
        while !connected.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("a second fire")
    });
    assert_eq!(error.unwrap_err().to_string(), "1 of 2 ranks failed:\n- rank 1: panicked: a second fire");
}

#[test]
fn a_rank_that_does_not_end_is_killed_at_the_timeout_and_cleaned_up() {
    let files = once(|| scratch("rank-harness-timeout"));
    let results = Ranks::new(2).timeout(Duration::from_secs(10)).results(|| {
        let store = std::env::var("MASTER_ADDR").unwrap();
        fs::write(files.join(world().rank().to_string()), format!("{} {store}", std::process::id())).unwrap();
        while world().rank() == 1 {
            std::thread::sleep(Duration::from_secs(1));
        }
        world().barrier("test")
    });
    let errors: Vec<String> =
        results.unwrap().into_iter().map(|result| result.unwrap_err().to_string()).collect();
    assert!(
        errors[0].contains(
            "rank 0 lost contact with the other ranks in `barrier(\"test\")`; rank 1 did not respond"
        ),
        "{errors:?}"
    );
    assert_eq!(errors[1], "rank 1: it was killed, because it had not ended after 10s");
    for rank in ["0", "1"] {
        let text = fs::read_to_string(files.join(rank)).unwrap();
        let (process, store) = text.split_once(" file://").unwrap();
        assert!(!Path::new("/proc").join(process).exists());
        assert!(!Path::new(store).parent().unwrap().exists());
    }
    fs::remove_dir_all(files).unwrap();
}

/// A test whose ranks do not end on their own.
#[test]
#[ignore = "run by the next test in a child process"]
fn ranks_that_wait() {
    let folder = PathBuf::from(std::env::var("TRAINER_TESTS_FOLDER").unwrap());
    let wait = || {
        let file = folder.join(world().rank().to_string());
        fs::write(file.with_extension("new"), std::process::id().to_string()).unwrap();
        fs::rename(file.with_extension("new"), file).unwrap();
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    };
    Ranks::new(2).run::<()>(wait).unwrap();
}

#[test]
fn ranks_end_when_the_test_that_started_them_is_killed() {
    let folder = scratch("rank-harness-killed");
    let mut test = child_process("rank_harness::ranks_that_wait")
        .env("TRAINER_TESTS_FOLDER", &folder)
        .env("TMPDIR", &folder)
        .spawn()
        .unwrap();
    let wait_until = |what: &str, is_true: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !is_true() {
            assert!(since.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let ids = || -> Vec<String> {
        ["0", "1"].into_iter().filter_map(|rank| fs::read_to_string(folder.join(rank)).ok()).collect()
    };
    let is_alive = |id: &String| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z') && !rest.is_empty())
    };
    wait_until("the ranks did not start", &|| ids().iter().filter(|id| is_alive(id)).count() == 2);
    let ids = ids();
    test.kill().unwrap();
    test.wait().unwrap();
    wait_until("the ranks did not end", &|| !ids.iter().any(is_alive));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
#[should_panic(expected = "rank 1: panicked: as expected")]
fn a_panic_on_a_rank_propagates_to_the_test() {
    Ranks::new(2).run(|| if world().rank() == 1 { panic!("as expected") } else { Ok(()) }).unwrap();
}

#[test]
fn ranks_that_cannot_be_started_are_refused() {
    let error = Ranks::new(0).run(|| Ok(())).unwrap_err().to_string();
    assert_eq!(error, "`Ranks::new(0)`: expected at least 1 rank");
    let thread = std::thread::spawn(|| Ranks::new(2).run(|| Ok(())).unwrap_err().to_string());
    assert!(thread.join().unwrap().contains("call it in a function with `#[test]`"));
    let nested = Ranks::new(1).run(|| Ok(Ranks::new(1).run(|| Ok(())).unwrap_err().to_string()));
    assert_eq!(
        nested.unwrap(),
        ["`Ranks` was called within the body of another `Ranks`: start all ranks from the test"]
    );
    let unreached = if std::env::var_os("TRAINER_TESTS_UNREACHED").is_none() {
        Ranks::new(1).env("TRAINER_TESTS_UNREACHED", "").run(|| Ok(()))
    } else {
        return;
    };
    let error = unreached.unwrap_err().to_string();
    assert!(error.contains("the test ended before this call of `Ranks`"), "{error}");
}

#[test]
fn an_explicit_launch_joins_its_own_world() {
    let sizes = Ranks::new(2).run(|| {
        let own = Launch::from_env()?.expect("a rank").rank();
        let file = std::env::var("MASTER_ADDR").unwrap().replace("file://", "") + "-by-hand";
        let by_hand = World::join(&Launch::file(1 - own, 2, file))?;
        let harness = Harness::small().configure(|builder| builder.world(by_hand.clone()));
        let seen = harness.at(|cx: &mut Cx<AfterFit>| Ok((cx.rank(), cx.vars().share().of)))?;
        Ok((own, by_hand.rank(), seen))
    });
    assert_eq!(sizes.unwrap(), [(0, 1, (1, 2)), (1, 0, (0, 2))]);
}
