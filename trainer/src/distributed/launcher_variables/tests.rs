//! Tests of the variables of launchers.

use super::*;

fn read(vars: &[(&str, &str)]) -> Result<Option<Launch>, String> {
    let launch =
        Launch::from_vars(|name| vars.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into()));
    launch.map_err(|error| error.to_string())
}

const TORCHRUN: [(&str, &str); 5] = [
    ("WORLD_SIZE", "4"),
    ("RANK", "3"),
    ("LOCAL_RANK", "1"),
    ("MASTER_ADDR", "node-1"),
    ("MASTER_PORT", "1234"),
];

#[test]
fn the_variables_of_each_launcher_are_read() {
    let by = |launcher| Some(launcher);
    let expected = Launch { local_rank: 1, launcher: by("torchrun"), ..Launch::tcp(3, 4, "node-1", 1234) };
    assert_eq!(read(&TORCHRUN).unwrap().unwrap(), expected);
    let slurm = [
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_PROCID", "3"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("MASTER_PORT", "1234"),
    ];
    let expected = Launch { local_rank: 1, launcher: by("SLURM"), ..Launch::tcp(3, 4, "127.0.0.1", 1234) };
    assert_eq!(read(&slurm).unwrap().unwrap(), expected);
    let mpi = [
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let expected = Launch { launcher: by("Open MPI"), ..Launch::tcp(1, 2, "127.0.0.1", PORT) };
    assert_eq!(read(&mpi).unwrap().unwrap(), expected);
    let mpich = [("PMI_SIZE", "3"), ("PMI_RANK", "2"), ("MPI_LOCALRANKID", "0"), ("MASTER_ADDR", "node-1")];
    let expected = Launch { local_rank: 0, launcher: by("MPICH"), ..Launch::tcp(2, 3, "node-1", PORT) };
    assert_eq!(read(&mpich).unwrap().unwrap(), expected);
    let file = [("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "file:///tmp/meet")];
    let expected = Launch { launcher: by("torchrun"), ..Launch::file(1, 2, "/tmp/meet") };
    assert_eq!(read(&file).unwrap().unwrap(), expected);
    assert_eq!(read(&[]).unwrap(), None);
    assert_eq!(read(&[("WORLD_SIZE", "1")]).unwrap(), None);
}

/// The variables that `srun` sets for a task of a job on several hosts.
const SRUN: [(&str, &str); 8] = [
    ("SLURM_STEP_NUM_TASKS", "8"),
    ("SLURM_NTASKS", "8"),
    ("SLURM_STEP_NUM_NODES", "4"),
    ("SLURM_PROCID", "5"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_JOB_ID", "1234567"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "node[01-03,07]"),
];

fn srun_with(vars: &[(&'static str, &'static str)]) -> Result<Option<Launch>, String> {
    let own = SRUN.into_iter().filter(|(name, _)| vars.iter().all(|(other, _)| name != other));
    // An empty value means that the variable is not set.
    let all: Vec<_> = own.chain(vars.iter().copied()).filter(|(_, value)| !value.is_empty()).collect();
    read(&all)
}

#[test]
fn srun_tasks_need_no_manually_set_variables() {
    let launch = srun_with(&[]).unwrap().unwrap();
    let expected = Launch {
        local_rank: 1,
        job: "1234567.0".to_owned(),
        launcher: Some("SLURM"),
        ..Launch::tcp(5, 8, "node01", 19_567)
    };
    assert_eq!(launch, expected);
    let store = |vars: &[(&'static str, &'static str)]| srun_with(vars).unwrap().unwrap().store;
    let tcp = |host: &str, port| Store::Tcp(host.to_owned(), port);
    // Without the list of the step, the list of the job is used.
    let job = ("SLURM_JOB_NODELIST", "gpu-1,gpu-2");
    assert_eq!(store(&[("SLURM_STEP_NODELIST", ""), job]), tcp("gpu-1", 19_567));
    assert_eq!(store(&[job]), tcp("node01", 19_567));
    // Variables that are set by hand are used.
    assert_eq!(store(&[("MASTER_ADDR", "other"), ("MASTER_PORT", "7")]), tcp("other", 7));
    assert_eq!(store(&[("MASTER_ADDR", "file:///a/b")]), Store::File("/a/b".into()));
    // Other steps, other jobs and one host.
    assert_eq!(store(&[("SLURM_STEP_ID", "3")]), tcp("node01", 19_858));
    assert_eq!(store(&[("SLURM_JOB_ID", "1234568")]), tcp("node01", 19_568));
    assert_eq!(store(&[("SLURM_STEP_NUM_NODES", "1")]), tcp("127.0.0.1", 19_567));
    assert_eq!(store(&[("SLURM_STEP_ID", "4294967295")]), tcp("node01", 17_182));
    let restarted = srun_with(&[("SLURM_RESTART_COUNT", "2")]).unwrap().unwrap();
    assert_eq!((restarted.attempt, launch.attempt), (2, 0));
    assert_ne!(restarted.prefix(), launch.prefix());
    // torchrun within a task.
    let inner = srun_with(&TORCHRUN).unwrap().unwrap();
    assert_eq!((inner.launcher(), inner.size()), (Some("torchrun"), 4));
}

/// The expected result of reading the variables of several launchers.
#[derive(Debug)]
enum Expected {
    Alone,
    /// The launcher, the rank and the size.
    Ranks(&'static str, u32, u32),
    /// The variables that contradict each other.
    Refused([&'static str; 2]),
}

const SRUN_1: &str =
    "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0";
const SRUN_2: &str =
    "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=7 SLURM_STEP_ID=0";
const SALLOC: &str = "SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_JOB_NODELIST=a,b";
const MPI_1: &str = "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0 PMIX_NAMESPACE=p@1";
const MPI_2: &str = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=p@1";
const MPICH_1: &str = "PMI_SIZE=1 PMI_RANK=0 MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0";
const MPICH_2: &str = "PMI_SIZE=2 PMI_RANK=1 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1";
const INTEL_2: &str = "PMI_SIZE=2 PMI_RANK=1 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 I_MPI_HYDRA_UUID=5209 HYDRA_BSTRAP_LOCALHOST=vm";
const TORCHRUN_1: &str = "WORLD_SIZE=1 RANK=0 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=t";
const TORCHRUN_2: &str = "WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=t";
const BY_HAND_1: &str = "WORLD_SIZE=1 RANK=0";
const BY_HAND_2: &str = "WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=1";
const BY_HAND_4: &str = "WORLD_SIZE=4 RANK=3 MASTER_ADDR=a MASTER_PORT=1";

#[test]
fn the_variables_of_several_launchers_are_nested_or_refused() {
    use Expected::{Alone, Ranks, Refused};
    let sizes = |one, other| Refused([one, other]);
    for (sets, expected) in [
        // One launcher.
        (&[MPI_1][..], Alone),
        (&[MPICH_1], Alone),
        (&[TORCHRUN_1], Alone),
        (&[BY_HAND_1], Alone),
        (&[SALLOC], Alone),
        (&[INTEL_2], Ranks("MPICH", 1, 2)),
        (&["PMIX_RANK=0"], Alone),
        (&["PMIX_RANK=1"], Refused(["PMIX_RANK", "WORLD_SIZE"])),
        (&["RANK=1 WORLD_SIZE=1"], Refused(["RANK", "WORLD_SIZE"])),
        // The size of another launcher was unset, as the messages advise.
        (&["OMPI_COMM_WORLD_RANK=1 PMIX_RANK=1"], Alone),
        (&["SLURM_PROCID=1 PMIX_RANK=1"], Alone),
        // `mpirun` in a shell of `srun`, in an allocation, and with `srun` as its own launcher.
        (&[SRUN_1, MPI_2], Ranks("Open MPI", 1, 2)),
        (&[SRUN_1, MPICH_2], Ranks("MPICH", 1, 2)),
        (&[SRUN_1, INTEL_2], Ranks("MPICH", 1, 2)),
        (&[SALLOC, MPI_2], Ranks("Open MPI", 1, 2)),
        (&[SALLOC, MPICH_2], Ranks("MPICH", 1, 2)),
        (&[SALLOC, MPI_1], Alone),
        (&[SRUN_1, MPI_1], Alone),
        (&["SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0", MPI_2], Ranks("Open MPI", 1, 2)),
        (&["SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0", MPI_2], Ranks("Open MPI", 1, 2)),
        (&[SRUN_2, MPI_1], sizes("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")),
        (&[SRUN_2, MPICH_1], sizes("PMI_SIZE", "SLURM_STEP_NUM_TASKS")),
        // `srun --mpi=pmi2` and `srun --mpi=pmix`.
        (&[SRUN_2, "PMI_SIZE=2 PMI_RANK=1 PMI_JOBID=7.0"], Ranks("SLURM", 1, 2)),
        (&[SRUN_2, "PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.7.0"], Ranks("SLURM", 1, 2)),
        // `torchrun` in the tasks of `srun` or `mpirun`, whose ranks it numbers anew.
        (&[SRUN_1, TORCHRUN_2], Ranks("torchrun", 0, 2)),
        (&[SRUN_2, TORCHRUN_2], Ranks("torchrun", 0, 2)),
        (&["SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3", TORCHRUN_2], Ranks("torchrun", 0, 2)),
        (&[MPI_2, TORCHRUN_2], Ranks("torchrun", 0, 2)),
        (&[SRUN_2, TORCHRUN_1], sizes("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")),
        (&[MPI_2, TORCHRUN_1], sizes("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")),
        // Variables that were set by hand, or are left over.
        (&[SRUN_1, BY_HAND_1], Alone),
        (&[SRUN_1, BY_HAND_2], Ranks("torchrun", 0, 2)),
        (&[SRUN_2, BY_HAND_4], Ranks("torchrun", 3, 4)),
        (&[SRUN_2, "WORLD_SIZE=2 RANK=1 MASTER_ADDR=a MASTER_PORT=1"], Ranks("torchrun", 1, 2)),
        (&[SRUN_2, BY_HAND_2], Refused(["RANK", "SLURM_PROCID"])),
        (&[MPI_2, BY_HAND_2], Refused(["RANK", "OMPI_COMM_WORLD_RANK"])),
        (&[SRUN_2, BY_HAND_1], sizes("WORLD_SIZE", "SLURM_STEP_NUM_TASKS")),
        (&[MPI_2, "WORLD_SIZE=1"], sizes("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")),
        (&[MPICH_2, BY_HAND_1], sizes("WORLD_SIZE", "PMI_SIZE")),
        (&[INTEL_2, BY_HAND_1], sizes("WORLD_SIZE", "PMI_SIZE")),
        (&[SRUN_1, MPI_2, BY_HAND_1], sizes("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")),
        (&[MPI_2, MPICH_1], sizes("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
        (&[MPI_1, MPICH_2], sizes("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")),
        (&[MPI_2, MPICH_2], Ranks("Open MPI", 1, 2)),
    ] {
        let vars = |without: &str| -> Vec<(&str, &str)> {
            let all = sets.iter().flat_map(|set| set.split(' '));
            let all = all.map(|var| var.split_once('=').unwrap());
            all.filter(|(name, _)| *name != without).collect()
        };
        let result = read(&vars(""));
        match (&expected, &result) {
            (Alone, Ok(None)) => {}
            (Ranks(launcher, rank, size), Ok(Some(launch))) => {
                assert_eq!((launch.launcher(), launch.rank, launch.size), (Some(*launcher), *rank, *size));
            }
            (Refused(names), Err(error)) => {
                assert!(names.iter().all(|name| error.contains(&format!("`{name}`"))), "{error}");
                // Each variable that the message advises to unset resolves the contradiction.
                for advice in error.split("unset `").skip(1) {
                    let name = advice.split('`').next().unwrap();
                    let again = read(&vars(name));
                    let text = again.as_ref().err().cloned().unwrap_or_default();
                    assert!(names.iter().any(|name| !text.contains(name)), "{error}\n{again:?}");
                }
            }
            _ => panic!("{sets:?}: expected {expected:?}, found {result:?}"),
        }
    }
}

#[test]
fn variables_of_torchrun_do_not_describe_the_store_of_another_launcher() {
    let left_over = [("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RESTART_COUNT", "3")];
    let launch = srun_with(&left_over).unwrap().unwrap();
    assert_eq!((launch.has_agent, launch.attempt), (false, 0));
    assert!(variables().any(|name| name == "SLURM_STEP_NUM_TASKS"));
}

#[test]
fn a_process_of_a_slurm_job_that_srun_did_not_start_trains_alone() {
    let alone = [
        // A shell of `salloc`, and the script of `sbatch`.
        &[("SLURM_STEP_NUM_TASKS", "")][..],
        &[("SLURM_STEP_NUM_TASKS", ""), ("SLURM_PROCID", "0"), ("SLURM_JOB_NODELIST", "node[1-4]")],
        // A task by itself, as `srun --pty bash` starts it.
        &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")],
    ];
    for vars in alone {
        assert_eq!(srun_with(vars).unwrap(), None, "{vars:?}");
    }
}

#[test]
fn the_first_host_of_a_list_is_found() {
    for (list, host) in [
        ("node-1", Some("node-1")),
        ("node[01-03,07],gpu-1", Some("node01")),
        ("gpu-1,node[01-03]", Some("gpu-1")),
        ("rack[2-3]-node[007,9].cluster", Some("rack2-node007.cluster")),
        ("node[12]", Some("node12")),
        ("10.0.0.[5-9]", Some("10.0.0.5")),
        (" a ", Some("a")),
        ("", None),
        ("node[01-03", None),
        ("node[]", None),
        ("node]1", None),
        ("two words", None),
        (",a", None),
    ] {
        assert_eq!(first_of(list).as_deref(), host, "{list}");
    }
}

#[test]
fn a_missing_address_is_an_error_that_says_how_to_pass_it() {
    let mpi =
        [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let mpich = [("PMI_SIZE", "4"), ("PMI_RANK", "1"), ("MPI_LOCALNRANKS", "2")];
    for (result, expected) in [
        (
            read(&mpi),
            "(Open MPI) is greater than 1: Open MPI does not report the host of rank 0: pass it, as in `mpirun -x MASTER_ADDR=node-1 …`",
        ),
        (
            read(&mpich),
            "(MPICH) is greater than 1: MPICH and Intel MPI do not report the host of rank 0: pass it, as in `mpirun -genv MASTER_ADDR node-1 …`",
        ),
        (
            srun_with(&[("SLURM_STEP_NODELIST", "")]),
            "start the processes with `srun`, which sets `SLURM_STEP_NODELIST`",
        ),
        (
            srun_with(&[("SLURM_STEP_NODELIST", "node[")]),
            "`SLURM_STEP_NODELIST` is `node[`: expected a list of hosts",
        ),
        (srun_with(&[("SLURM_JOB_ID", "x")]), "`SLURM_JOB_ID` is `x`: expected a number of type `u64`"),
    ] {
        let error = result.unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn keys_differ_between_jobs_and_restarts() {
    let keys = |vars: &[(&'static str, &'static str)]| {
        read(&[&TORCHRUN[..], vars].concat()).unwrap().unwrap().prefix()
    };
    let run = ("TORCHELASTIC_RUN_ID", "a");
    let other = ("TORCHELASTIC_RUN_ID", "b");
    let restarted = ("TORCHELASTIC_RESTART_COUNT", "1");
    let all = [keys(&[]), keys(&[run]), keys(&[other]), keys(&[run, restarted])];
    assert!((0..4).all(|nth| !all[..nth].contains(&all[nth])), "{all:?}");
    for (vars, job) in [
        (
            &[
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_PROCID", "0"),
                ("SLURM_JOB_ID", "7"),
                ("SLURM_STEP_ID", "1"),
            ][..],
            "7.1",
        ),
        (&[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0"), ("PMIX_NAMESPACE", "p@1")], "p@1"),
        (&[("PMI_SIZE", "2"), ("PMI_RANK", "0"), ("PMI_JOBID", "k")], "k"),
    ] {
        let vars = [vars, &[("MASTER_ADDR", "node-1"), ("RANK", "0")]].concat();
        assert_eq!(read(&vars).unwrap().unwrap().job, job);
    }
}

#[test]
fn wrong_and_missing_variables_are_named() {
    for (name, value, text) in [
        ("WORLD_SIZE", "four", "`WORLD_SIZE` is `four`: expected a number of type `u32`"),
        ("WORLD_SIZE", "0", "`WORLD_SIZE` is 0: expected the number of processes, at least 1"),
        ("RANK", "-1", "`RANK` is `-1`: expected a number of type `u32`"),
        ("RANK", "4", "`RANK` is 4, but `WORLD_SIZE` is 4: expected a rank from 0 to 3"),
        ("MASTER_PORT", "70000", "`MASTER_PORT` is `70000`: expected a number of type `u16`"),
        ("TRAINER_RANK_TIMEOUT", "-1", "`TRAINER_RANK_TIMEOUT` is -1: expected a number of seconds above 0"),
    ] {
        let vars = TORCHRUN.into_iter().filter(|(own, _)| *own != name).chain([(name, value)]);
        let error = read(&vars.collect::<Vec<_>>()).unwrap_err();
        assert_eq!(error, format!("the environment variable {text}"));
    }
    for missing in ["WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"] {
        let vars: Vec<_> = TORCHRUN.into_iter().filter(|(name, _)| *name != missing).collect();
        let error = read(&vars).unwrap_err();
        assert!(error.starts_with(&format!("the environment variable `{missing}` is not set")), "{error}");
    }
}
