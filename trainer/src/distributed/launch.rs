//! [`Launch`]: how a process connects to the others, read from the variables of its launcher or set
//! by the program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::join::{ATTEMPT, OF_JOB};
use crate::error::{Error, Result};
use crate::io::files::read_text;

/// How long a rank waits for the others by default.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The port of an MPI job that does not set `MASTER_PORT`: the default of torchrun.
const PORT: u16 = 29_500;

/// The ports of SLURM jobs that do not set `MASTER_PORT`: the first port, and the number of ports.
/// They are below the ports that Linux assigns automatically. Job steps that run at the same time
/// have different ports.
const SLURM_PORTS: (u64, u64) = (15_000, 10_000);

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
#[doc(alias = "torchrun")]
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

/// The names of the variables that a launcher sets, such as the variable for the number of
/// processes.
struct Launcher {
    name: &'static str,
    size: &'static str,
    rank: &'static str,
    local_rank: &'static str,
    /// The variables that together identify the job.
    job: &'static [&'static str],
    /// The variable with the number of times that the program was restarted.
    attempt: Option<&'static str>,
    /// The advice in error messages on how to pass the address of rank 0.
    pass_address: &'static str,
}

/// The launchers whose variables are read, each before those that may have started it: `torchrun`
/// may run in a task of SLURM or MPI, and `mpirun` in a task of SLURM.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "torchrun",
        size: "WORLD_SIZE",
        rank: "RANK",
        local_rank: "LOCAL_RANK",
        job: &[RUN_ID],
        attempt: Some("TORCHELASTIC_RESTART_COUNT"),
        pass_address: "start the processes with `torchrun`",
    },
    Launcher {
        name: "Open MPI",
        size: "OMPI_COMM_WORLD_SIZE",
        rank: "OMPI_COMM_WORLD_RANK",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        job: &["PMIX_NAMESPACE"],
        attempt: None,
        pass_address: "Open MPI does not report the host of rank 0: pass it, as in `mpirun -x MASTER_ADDR=node-1 …`",
    },
    Launcher {
        name: "MPICH",
        size: "PMI_SIZE",
        rank: "PMI_RANK",
        local_rank: "MPI_LOCALRANKID",
        job: &["PMI_JOBID", "I_MPI_HYDRA_UUID"],
        attempt: None,
        pass_address: "MPICH and Intel MPI do not report the host of rank 0: pass it, as in `mpirun -genv MASTER_ADDR node-1 …`",
    },
    // Only `srun` sets `SLURM_STEP_NUM_TASKS`: a shell within an allocation is one process.
    Launcher {
        name: "SLURM",
        size: "SLURM_STEP_NUM_TASKS",
        rank: "SLURM_PROCID",
        local_rank: "SLURM_LOCALID",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        attempt: Some("SLURM_RESTART_COUNT"),
        pass_address: "start the processes with `srun`, which sets `SLURM_STEP_NODELIST`",
    },
];

/// The id of a run of torchrun, which sets it in each process that it starts.
const RUN_ID: &str = "TORCHELASTIC_RUN_ID";

/// Whether torchrun serves the store.
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Returns the names of the variables by which a process finds the other ranks.
pub(crate) fn variables() -> impl Iterator<Item = &'static str> {
    let of = |launcher: &Launcher| {
        [launcher.size, launcher.rank, launcher.local_rank]
            .into_iter()
            .chain(launcher.job.iter().copied())
            .chain(launcher.attempt)
    };
    LAUNCHERS.iter().flat_map(of).chain([AGENT_STORE, "PMIX_RANK"])
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

    pub(super) fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        let mut told = Vec::new();
        for launcher in &LAUNCHERS {
            told.extend(Told::read(&Vars { var: &var, launcher })?);
        }
        let Some(Told { launcher, size, .. }) = choose(&told, var(RUN_ID).is_some())? else {
            check_absent(&var)?;
            return Ok(None);
        };
        let vars = Vars { var: &var, launcher };
        if size == 1 {
            return Ok(None);
        }
        let rank: u32 = vars.needed(launcher.rank)?;
        let is_torchrun = launcher.name == "torchrun";
        let local_rank: u32 = vars.number(launcher.local_rank)?.unwrap_or(rank);
        let host = match vars.text("MASTER_ADDR")? {
            Some(host) => host,
            None if !is_torchrun && vars.is_one_host(size)? => "127.0.0.1".to_owned(),
            None => vars.first_host()?.ok_or_else(|| vars.missing("MASTER_ADDR"))?,
        };
        let store = match host.strip_prefix("file://") {
            Some(path) => Store::File(path.into()),
            None => {
                let port = vars.number("MASTER_PORT")?;
                let port = if is_torchrun || port.is_some() { port } else { Some(vars.port()?) };
                Store::Tcp(host, port.ok_or_else(|| vars.missing("MASTER_PORT"))?)
            }
        };
        let timeout = vars.number::<f64>("TRAINER_RANK_TIMEOUT")?;
        let timeout = timeout.map_or(Ok(TIMEOUT), |seconds| {
            Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero()).ok_or_else(|| {
                Error::usage(format!(
                    "the environment variable `TRAINER_RANK_TIMEOUT` is {seconds}: expected a number of seconds above 0"
                ))
            })
        })?;
        let attempt = launcher.attempt.map_or(Ok(None), |name| vars.number::<u64>(name))?.unwrap_or(0);
        let has_agent = is_torchrun && vars.text(AGENT_STORE)?.is_some_and(|value| value == "True");
        let mut job = Vec::new();
        for name in launcher.job {
            job.extend(vars.text(name)?);
        }
        Ok(Some(Launch {
            rank,
            size,
            local_rank,
            store,
            timeout,
            job: job.join("."),
            attempt,
            has_agent,
            launcher: Some(launcher.name),
        }))
    }
}

/// What the variables of a launcher say about this process.
#[derive(Clone, Copy)]
struct Told {
    launcher: &'static Launcher,
    size: u32,
    rank: Option<u32>,
}

impl Told {
    /// Reads the size and the rank. Returns `None` if the launcher has set no size.
    fn read<F: Fn(&str) -> Option<OsString>>(vars: &Vars<'_, F>) -> Result<Option<Self>> {
        let launcher = vars.launcher;
        let Some(size) = vars.number::<u32>(launcher.size)? else { return Ok(None) };
        if size == 0 {
            return Err(Error::usage(format!(
                "the environment variable `{}` is 0: expected the number of processes, at least 1",
                launcher.size
            )));
        }
        let rank = vars.number(launcher.rank)?;
        match rank.filter(|rank| *rank >= size) {
            None => Ok(Some(Told { launcher, size, rank })),
            Some(rank) => Err(Error::usage(format!(
                "the environment variable `{}` is {rank}, but `{}` is {size}: expected a rank from 0 to {}",
                launcher.rank,
                launcher.size,
                size - 1
            ))),
        }
    }

    fn has_other_rank(&self, other: &Told) -> bool {
        self.rank.zip(other.rank).is_some_and(|(own, other)| own != other)
    }
}

/// Chooses the launcher whose variables count, which [`Launch::from_env`] documents. `is_torchrun`
/// is whether torchrun, rather than the program's user, has set the variables of torchrun.
fn choose(told: &[Told], is_torchrun: bool) -> Result<Option<Told>> {
    let [inner, others @ ..] = told else { return Ok(None) };
    let is_mpi = |own: &Told| !matches!(own.launcher.name, "torchrun" | "SLURM");
    for other in others {
        let has_other_size = inner.size != other.size;
        let has_other_rank = !has_other_size && inner.has_other_rank(other);
        let names = |own: &Told| if has_other_rank { own.launcher.rank } else { own.launcher.size };
        let is_by_hand = inner.launcher.name == "torchrun" && !is_torchrun;
        if (has_other_size && (inner.size == 1 || is_mpi(inner) && is_mpi(other)))
            || (has_other_rank && (is_by_hand || is_mpi(inner) && is_mpi(other)))
        {
            let value = |own: &Told| if has_other_rank { own.rank.unwrap_or(0) } else { own.size };
            let advice = |own: &Told, other: &Told| match own.size {
                1 => format!("unset `{}` to train in this process alone", other.launcher.size),
                size => format!("unset `{}` to train in {size} processes", other.launcher.size),
            };
            return Err(Error::usage(format!(
                "the environment variable `{}` ({}) is {}, but `{}` ({}) is {}: {}, or {}",
                names(inner),
                inner.launcher.name,
                value(inner),
                names(other),
                other.launcher.name,
                value(other),
                advice(other, inner),
                advice(inner, other),
            )));
        }
    }
    // `srun` can start the processes of an MPI program itself, and says where rank 0 is.
    let by_srun = others.iter().find(|other| {
        other.launcher.name == "SLURM"
            && is_mpi(inner)
            && other.size == inner.size
            && !other.has_other_rank(inner)
    });
    Ok(Some(*by_srun.unwrap_or(inner)))
}

/// Returns an error if the process is one of several although no launcher has set their number.
fn check_absent(var: &impl Fn(&str) -> Option<OsString>) -> Result<()> {
    let is_set = |name: &str| var(name).is_some();
    if is_set("RANK") && is_set("MASTER_ADDR") {
        return Err(Error::usage(
            "the environment variable `WORLD_SIZE` is not set, but `RANK` and `MASTER_ADDR` are: set it to the number of \
             processes that train together, or unset `RANK` to train in this process alone",
        ));
    }
    let rank = var("PMIX_RANK").and_then(|rank| rank.to_string_lossy().trim().parse::<u32>().ok());
    match rank {
        // Open MPI and SLURM set this variable, too: their sizes were unset by hand.
        Some(rank) if rank > 0 && !is_set("OMPI_COMM_WORLD_RANK") && !is_set("SLURM_PROCID") => {
            Err(Error::usage(format!(
                "the environment variable `PMIX_RANK` is {rank}, so a launcher has started several processes, but no variable says \
                 how many, as with `prterun`: start them with `mpirun`, set `WORLD_SIZE`, `RANK`, `MASTER_ADDR` and `MASTER_PORT`, or \
                 unset `PMIX_RANK` to train in this process alone"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns an id of the process of MPICH that has started a process on this host, which all
/// processes of a job on one host have in common: its number and the time of its start. `None` if
/// there is no such process, or if it cannot be read.
fn hydra_proxy(process: &str) -> Option<String> {
    const DEEPEST: usize = 64;
    let mut process = process.to_owned();
    for _ in 0..DEEPEST {
        let stat = read_text(Path::new(&format!("/proc/{process}/stat"))).ok()?;
        let (name, fields) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        if name == "hydra_pmi_proxy" {
            return Some(format!("hydra_pmi_proxy-{process}-{}", fields.get(19)?));
        }
        process = (*fields.get(1)?).to_owned();
    }
    None
}

/// The environment variables, and the launcher that set them.
struct Vars<'a, F> {
    var: &'a F,
    launcher: &'static Launcher,
}

impl<F: Fn(&str) -> Option<OsString>> Vars<'_, F> {
    fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = (self.var)(name) else { return Ok(None) };
        value
            .into_string()
            .map(Some)
            .map_err(|_| Error::usage(format!("the environment variable `{name}` is not UTF-8")))
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|_| {
            let kind = std::any::type_name::<T>();
            Error::usage(format!(
                "the environment variable `{name}` is `{text}`: expected a number of type `{kind}`"
            ))
        })
    }

    fn needed<T: FromStr>(&self, name: &str) -> Result<T> {
        self.number(name)?.ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> Error {
        let Launcher { name: launcher, size, pass_address, .. } = self.launcher;
        let start = if name == "MASTER_ADDR" { pass_address } else { LAUNCHERS[0].pass_address };
        Error::usage(format!(
            "the environment variable `{name}` is not set, but `{size}` ({launcher}) is greater than 1: {start}, set the \
             variable, or unset `{size}` to train in this process alone"
        ))
    }

    /// Returns the first host of a SLURM job, on which rank 0 runs.
    fn first_host(&self) -> Result<Option<String>> {
        if self.launcher.name != "SLURM" {
            return Ok(None);
        }
        for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
            if let Some(list) = self.text(name)? {
                return first_of(&list).map(Some).ok_or_else(|| {
                    Error::usage(format!(
                        "the environment variable `{name}` is `{list}`: expected a list of hosts, as in \
                         `node[01-03,07],gpu-1`; set `MASTER_ADDR` to the host of rank 0"
                    ))
                });
            }
        }
        Ok(None)
    }

    /// Returns the port of a job that does not set `MASTER_PORT`.
    fn port(&self) -> Result<u16> {
        if self.launcher.name != "SLURM" {
            return Ok(PORT);
        }
        let job: u64 = self.number("SLURM_JOB_ID")?.unwrap_or(0);
        let step: u64 = self.number("SLURM_STEP_ID")?.unwrap_or(0);
        let (first, count) = SLURM_PORTS;
        // The factor is prime, so the steps of a job and the next jobs have different ports.
        let nth = (job % count + step % count * 97) % count;
        Ok(u16::try_from(first + nth).expect("below 25,000"))
    }

    /// Whether all processes of an MPI or SLURM job are on this host.
    fn is_one_host(&self, size: u32) -> Result<bool> {
        let local = match self.launcher.name {
            "SLURM" => return Ok(self.number::<u32>("SLURM_STEP_NUM_NODES")? == Some(1)),
            "Open MPI" => "OMPI_COMM_WORLD_LOCAL_SIZE",
            _ => "MPI_LOCALNRANKS",
        };
        Ok(self.number::<u32>(local)? == Some(size))
    }
}

/// Returns the first host of a list in the format of SLURM, such as `node[01-03,07],gpu-1`.
fn first_of(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let (name, others) = rest.split_at(rest.find(['[', ',']).unwrap_or(rest.len()));
        host.push_str(name);
        let Some(ranges) = others.strip_prefix('[') else { break };
        let (ranges, after) = ranges.split_once(']')?;
        let number = ranges.split([',', '-']).next().filter(|number| !number.is_empty())?;
        host.push_str(number);
        rest = after;
    }
    let is_name = |letter: char| letter.is_alphanumeric() || ".-_".contains(letter);
    (!host.is_empty() && host.chars().all(is_name)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Option<Launch>, String> {
        let launch = Launch::from_vars(|name| {
            vars.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into())
        });
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
        let expected =
            Launch { local_rank: 1, launcher: by("torchrun"), ..Launch::tcp(3, 4, "node-1", 1234) };
        assert_eq!(read(&TORCHRUN).unwrap().unwrap(), expected);
        let slurm = [
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_PROCID", "3"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NUM_NODES", "1"),
            ("MASTER_PORT", "1234"),
        ];
        let expected =
            Launch { local_rank: 1, launcher: by("SLURM"), ..Launch::tcp(3, 4, "127.0.0.1", 1234) };
        assert_eq!(read(&slurm).unwrap().unwrap(), expected);
        let mpi = [
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let expected = Launch { launcher: by("Open MPI"), ..Launch::tcp(1, 2, "127.0.0.1", PORT) };
        assert_eq!(read(&mpi).unwrap().unwrap(), expected);
        let mpich =
            [("PMI_SIZE", "3"), ("PMI_RANK", "2"), ("MPI_LOCALRANKID", "0"), ("MASTER_ADDR", "node-1")];
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
                    assert_eq!(
                        (launch.launcher(), launch.rank, launch.size),
                        (Some(*launcher), *rank, *size)
                    );
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
        let mpi = [
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
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
            (
                &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0"), ("PMIX_NAMESPACE", "p@1")],
                "p@1",
            ),
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
            (
                "TRAINER_RANK_TIMEOUT",
                "-1",
                "`TRAINER_RANK_TIMEOUT` is -1: expected a number of seconds above 0",
            ),
        ] {
            let vars = TORCHRUN.into_iter().filter(|(own, _)| *own != name).chain([(name, value)]);
            let error = read(&vars.collect::<Vec<_>>()).unwrap_err();
            assert_eq!(error, format!("the environment variable {text}"));
        }
        for missing in ["WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let vars: Vec<_> = TORCHRUN.into_iter().filter(|(name, _)| *name != missing).collect();
            let error = read(&vars).unwrap_err();
            assert!(
                error.starts_with(&format!("the environment variable `{missing}` is not set")),
                "{error}"
            );
        }
    }
}
