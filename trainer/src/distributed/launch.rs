//! [`Launch`]: how a process connects to the others, read from the variables of its launcher or set
//! by the program.

use std::path::PathBuf;
use std::time::Duration;

use super::launcher_variables::hydra_proxy;
use crate::error::Result;

/// The parts of an identity: before the attempt, and before the id of the job.
pub(super) const ATTEMPT: &str = "attempt ";
pub(super) const OF_JOB: &str = " of job ";

/// How long a rank waits for the others by default.
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);

/// The rank of this process, the number of processes, and the address through which they connect.
///
/// [`from_env`](Launch::from_env) reads them from the variables that a launcher sets.
/// [`tcp`](Launch::tcp) and [`file`](Launch::file) set them explicitly.
///
/// ```
/// use std::time::Duration;
/// use trainer::distributed::Launch;
///
/// let launch = Launch::tcp(1, 4, "10.0.0.1", 29_500).timeout(Duration::from_secs(60));
/// assert_eq!((launch.rank(), launch.size()), (1, 4));
/// ```
#[doc(alias("torchrun", "num_nodes"))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) local_rank: u32,
    pub(super) store: Store,
    pub(super) timeout: Duration,
    /// The job that the processes belong to; empty if it has no id.
    pub(super) job: String,
    /// The number of times that the launcher has restarted the program.
    pub(super) attempt: u64,
    /// Whether a process of the launcher serves the store, instead of rank 0.
    pub(super) has_agent: bool,
    /// The name of the launcher, if its variables were read.
    pub(super) launcher: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Tcp(String, u16),
    File(PathBuf),
}

impl Launch {
    /// Creates a launch whose processes connect through a TCP store, which rank 0 serves at this
    /// host and port.
    #[must_use]
    pub fn tcp(rank: u32, size: u32, host: impl Into<String>, port: u16) -> Self {
        Launch::new(rank, size, Store::Tcp(host.into(), port))
    }

    /// Creates a launch of processes on one host, which connect through a file. The file must not
    /// exist before the first process starts. For several hosts, use [`tcp`](Launch::tcp).
    #[must_use]
    pub fn file(rank: u32, size: u32, path: impl Into<PathBuf>) -> Self {
        Launch::new(rank, size, Store::File(path.into()))
    }

    fn new(rank: u32, size: u32, store: Store) -> Self {
        Launch {
            rank,
            size,
            local_rank: rank,
            store,
            timeout: TIMEOUT,
            job: String::new(),
            attempt: 0,
            has_agent: false,
            launcher: None,
        }
    }

    /// Sets the id of the job that the processes belong to, which must be the same in all of them.
    /// Processes of different jobs that connect to the same address return an error instead of
    /// training together. With [`from_env`](Launch::from_env), defaults to the id that torchrun,
    /// SLURM or MPI has assigned. With [`tcp`](Launch::tcp) and [`file`](Launch::file), defaults to
    /// no id.
    #[must_use]
    pub fn job(mut self, id: impl Into<String>) -> Self {
        self.job = id.into();
        self
    }

    /// Whether all processes run on this host.
    pub(super) fn is_local(&self) -> bool {
        match &self.store {
            Store::File(_) => true,
            Store::Tcp(host, _) => matches!(host.as_str(), "localhost" | "127.0.0.1" | "::1"),
        }
    }

    /// The identity of the processes that connect through the store at the address: their job and,
    /// if the store lives no longer than the attempt, how often the program was restarted.
    pub(super) fn identity(&self) -> String {
        let has_new_store = matches!(self.store, Store::Tcp(..)) && !self.has_agent;
        let attempt = if has_new_store { self.attempt.to_string() } else { "any".to_owned() };
        format!("{ATTEMPT}{attempt}{OF_JOB}{}", self.job)
    }

    /// The prefix of all keys in the store. It separates different jobs, and the attempts of a
    /// restarted program.
    pub(super) fn prefix(&self) -> String {
        format!("/worker/{}/attempt_{}", self.job, self.attempt)
    }

    /// Sets how long this process waits for the others: when it joins them, and in each collective.
    /// Defaults to 300 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The rank of this process, from 0.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of processes.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The rank of this process among the processes on the same host, from 0. Equal to
    /// [`rank`](Launch::rank) if the launcher does not set it, and for [`tcp`](Launch::tcp) and
    /// [`file`](Launch::file).
    #[must_use]
    pub fn local_rank(&self) -> u32 {
        self.local_rank
    }

    /// The launcher whose variables [`from_env`](Launch::from_env) has read: `torchrun`, `SLURM`,
    /// `Open MPI` or `MPICH` (also for Intel MPI); `None` for [`tcp`](Launch::tcp) and
    /// [`file`](Launch::file).
    #[must_use]
    pub fn launcher(&self) -> Option<&'static str> {
        self.launcher
    }

    /// Reads the variables of torchrun (`WORLD_SIZE`, `RANK`, `LOCAL_RANK`, `MASTER_ADDR`,
    /// `MASTER_PORT`), Open MPI, MPICH and Intel MPI, and SLURM's `srun`. Returns `None` if no
    /// launcher has set its variables, or if there is only one process. In a SLURM allocation, a
    /// shell or a script that was not started with `srun` also gets `None`.
    ///
    /// If the variables of several launchers are set, those of the launcher that comes first in
    /// this list count, because the later ones may have started it: `mpirun -n 4` in a shell of
    /// `srun` has 4 ranks. If SLURM and MPI agree on the size and the rank, SLURM's variables
    /// count, which also say where rank 0 is. A launcher whose size is 1 does not count beside one
    /// with a larger size that may have started it, because its variables may be left over: that is
    /// an error, like a `RANK` that was set by hand and differs from the rank of another launcher
    /// with the same size.
    ///
    /// A `MASTER_ADDR` that begins with `file://` is the path of a file. With SLURM, neither
    /// `MASTER_ADDR` nor `MASTER_PORT` is needed: they default to the first host of
    /// `SLURM_STEP_NODELIST` or `SLURM_JOB_NODELIST`, and to a port derived from the ids of the job
    /// and the step. With MPI, `MASTER_PORT` defaults to 29500, and `MASTER_ADDR` must be set to
    /// the host of rank 0 unless all processes are on one host. `TRAINER_RANK_TIMEOUT` sets the
    /// timeout in seconds. The [job](Launch::job) is `TORCHELASTIC_RUN_ID`, `SLURM_JOB_ID` with
    /// `SLURM_STEP_ID`, `PMIX_NAMESPACE`, `PMI_JOBID` or `I_MPI_HYDRA_UUID`; MPICH sets none, so
    /// that processes on one host are identified by the process of MPICH that has started them.
    /// After a restart, which `TORCHELASTIC_RESTART_COUNT` and `SLURM_RESTART_COUNT` count,
    /// processes do not connect to those of an earlier attempt.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable is missing or invalid, or if two contradict each other; the
    /// error names them.
    pub fn from_env() -> Result<Option<Self>> {
        let launch = Launch::from_vars(|name| std::env::var_os(name))?;
        Ok(launch.map(|launch| match hydra_proxy("self") {
            Some(id) if launch.launcher == Some("MPICH") && launch.job.is_empty() && launch.is_local() => {
                launch.job(id)
            }
            _ => launch,
        }))
    }
}
