//! The variables of launchers, as [`Launch::from_env`] reads them.

use std::ffi::OsString;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use super::launch::{Launch, Store, TIMEOUT};
use crate::error::{Error, Result};
use crate::io::files::read_text;

/// The port of an MPI job that does not set `MASTER_PORT`: the default of torchrun.
const PORT: u16 = 29_500;

/// The ports of SLURM jobs that do not set `MASTER_PORT`: the first port, and the number of ports.
/// They are below the ports that Linux assigns automatically. Job steps that run at the same time
/// have different ports.
const SLURM_PORTS: (u64, u64) = (15_000, 10_000);

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

/// Returns an id of the process of MPICH that has started a process on this host, which all
/// processes of a job on one host have in common: its number and the time of its start. `None` if
/// there is no such process, or if it cannot be read.
pub(super) fn hydra_proxy(process: &str) -> Option<String> {
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

#[cfg(test)]
mod tests;
