//! Joining the other processes of a launch.

use std::path::Path;
use std::process;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use trainer_formats::run::Process;

use super::departure::{cause, ended, leave, wait_for_readers};
use super::launch::{ATTEMPT, Launch, OF_JOB, Store};
use super::links::{Links, check_available};
use super::main_only;
use super::peers::{Listener, Peers, random};
use super::shared_links::Shared;
use super::steps;
use crate::error::{Error, Result};
use crate::io::files;
use crate::libtorch::dist::{Group, Meeting};

/// The store's key for the number of ranks that are ready to connect.
const READY: &str = "trainer/ready";

/// The key that the last rank sets when it is ready.
const GO: &str = "trainer/go";

/// The key, shared by all programs at an address, for the [identity](Launch::identity) of the job
/// that the store serves.
const JOB: &str = "trainer/job";

/// The key for the error of a process of the same job that was refused before it joined.
const REFUSED: &str = "trainer/refused";

/// The number of open files to reserve for other needs of a world and for the rest of the program.
const OTHER_FILES: u64 = 48;

/// The first and the longest time that a rank waits before it reads the store again.
const PERIOD: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(200)];

/// Joins the other processes of a launch.
pub(super) fn join(launch: &Launch) -> Result<Links> {
    let Launch { rank, size, .. } = *launch;
    if size < 2 || rank >= size {
        return Err(Error::usage(format!(
            "cannot join {size} processes as rank {rank}: expected at least 2 processes, and a rank below the number of processes"
        )));
    }
    check_available()?;
    main_only::check("World::join")?;
    let steps = steps::of_rank(rank, size);
    let (group, peers) = connect(launch, &steps::peers(&steps))?;
    let shared = Arc::new(Shared::new(&group, steps, peers));
    Ok(Links { group, shared, place: None })
}

/// Connects to the other processes of a launch, and opens connections to `ranks` for control
/// messages. First checks that all processes belong to the same job, and that this process can open
/// enough files.
fn connect(launch: &Launch, ranks: &[u32]) -> Result<(Group, Peers)> {
    let Launch { rank, size, timeout, .. } = *launch;
    let since = Instant::now();
    let address = match &launch.store {
        Store::File(path) => path.display().to_string(),
        Store::Tcp(host, port) => format!("{host}:{port}"),
    };
    let by = launch.launcher.map_or_else(String::new, |launcher| format!(", started by {launcher}"));
    let failed = |why: &str| {
        Error::msg(format!(
            "rank {rank} of {size} could not connect to the other ranks at {address} (timeout {timeout:?}{by}): check that all of \
             them were started with this address, and that no other program uses it ({why})"
        ))
    };
    // The store ends with the process that serves it: libtorch's own error says nothing about
    // ranks.
    let explained = |error: Error| match error {
        Error::Torch(error) => failed(&error.to_string()),
        error => error,
    };
    let group = open(launch).map_err(explained)?;
    check_job(&group, launch, &address, since)
        .map_err(|why| why.map_or_else(|| failed("the store is empty"), explained))?;
    claim(&group, launch, &address).map_err(explained)?;
    let left = |error: Error| {
        leave(&group, &error.to_string(), || ());
        error
    };
    check_files(&group).map_err(left)?;
    let listener = Listener::open(&group, launch).map_err(left)?;
    let ready = group.count(READY).map_err(explained)?;
    if ready == u64::from(size) {
        group.set(GO, "all ranks are ready").map_err(explained)?;
    }
    let [mut period, longest] = PERIOD;
    while group.get(GO).map_err(explained)?.is_none() {
        let refused = group.shared(REFUSED).map_err(explained)?.map(|why| ended(&group, &why));
        if let Some(error) = cause(&group).map_err(explained)?.or(refused) {
            wait_for_readers(&group);
            return Err(error);
        }
        if since.elapsed() > timeout {
            let ready = group.get(READY).map_err(explained)?.unwrap_or_default();
            return Err(failed(&format!("{} of {size} ranks have joined{}", ready.trim(), missing(&group))));
        }
        thread::sleep(period);
        period = (2 * period).min(longest);
    }
    let connected = group.connect().and_then(|()| listener.connect(&group, ranks, timeout));
    let peers = connected.map_err(|error| left(failed(&error.to_string())))?;
    Ok((group, peers))
}

/// Opens the store that the processes of a launch use to find each other.
fn open(launch: &Launch) -> Result<Group> {
    let (file, tcp) = match &launch.store {
        Store::File(path) => (Some(path.to_string_lossy()), ("", 0)),
        Store::Tcp(host, port) => (None, (host.as_str(), *port)),
    };
    let interface = std::env::var("GLOO_SOCKET_IFNAME").ok();
    Group::open(&Meeting {
        tcp,
        file: file.as_deref(),
        prefix: &launch.prefix(),
        interface: interface.as_deref(),
        own_host: launch.is_local().then_some("127.0.0.1"),
        timeout_ms: i64::try_from(launch.timeout.as_millis()).unwrap_or(i64::MAX),
        rank: launch.rank,
        size: launch.size,
        is_server: launch.rank == 0 && !launch.has_agent,
    })
}

/// Checks that the store belongs to the job of this process, which rank 0 declares. Returns an
/// error if the store belongs to a different job or to a different attempt of the same job, and
/// `Err(None)` if no job is declared before the timeout.
fn check_job(
    group: &Group,
    launch: &Launch,
    address: &str,
    since: Instant,
) -> std::result::Result<(), Option<Error>> {
    let own = launch.identity();
    if launch.rank == 0 {
        group.set_shared(JOB, &own)?;
    }
    let [mut period, longest] = PERIOD;
    let job = loop {
        match group.shared(JOB)? {
            Some(job) => break job,
            None if since.elapsed() > launch.timeout => return Err(None),
            None => thread::sleep(period),
        }
        period = (2 * period).min(longest);
    };
    if job == own {
        return Ok(());
    }
    let Launch { rank, size, attempt, .. } = launch;
    let of_own = own.split_once(OF_JOB).map_or("", |(_, id)| id);
    let (of_main, id) = job.split_once(OF_JOB).unwrap_or(("", &job));
    if id == of_own {
        let of_main = of_main.trim_start_matches(ATTEMPT);
        let why = format!(
            "rank {rank} of {size} cannot connect to the other ranks at {address}: it was restarted {attempt} times, but rank 0 was \
             restarted {of_main} times, as `TORCHELASTIC_RESTART_COUNT` or `SLURM_RESTART_COUNT` says; end the processes of the \
             earlier attempt, or set the variable to the same value for all ranks"
        );
        // The ranks of the other attempt would wait for this one.
        let _ = group.set_shared(REFUSED, &format!("rank {rank}: {why}"));
        return Err(Some(Error::usage(why)));
    }
    Err(Some(Error::usage(format!(
        "rank {rank} of {size} cannot connect to the other ranks at {address}: this process belongs to {}, but the store at this \
         address belongs to {}; give each job its own address, for example with `MASTER_PORT`, and a file that does not exist yet",
        named(of_own),
        named(id)
    ))))
}

fn named(id: &str) -> String {
    if id.is_empty() { "a job without an id".to_owned() } else { format!("the job `{id}`") }
}

/// Claims the rank of this process, which no other process may then have. This keeps two jobs
/// without an id apart, and two processes with the same rank.
///
/// # Errors
///
/// Returns an error if another process has claimed the rank. If the ranks are not complete yet,
/// they all return it: it is unknown which of the two processes belongs to them.
fn claim(group: &Group, launch: &Launch, address: &str) -> Result<()> {
    static OWN: OnceLock<String> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        let host = Process::current()
            .host
            .map_or_else(|| "an unknown host".to_owned(), |host| format!("the host `{host}`"));
        format!("{:016x} process {} on {host}", random(), process::id())
    });
    let key = claim_key(launch.rank);
    group.set(&key, own)?;
    let holder = group.get(&key)?.unwrap_or_default();
    if holder == *own {
        return Ok(());
    }
    let described = |claim: &str| claim.split_once(' ').map_or(String::new(), |(_, text)| text.to_owned());
    let Launch { rank, size, .. } = launch;
    let error = Error::usage(format!(
        "{} cannot join as rank {rank} of {size} at {address}, because {} has already joined as this rank: give each process its \
         own rank, and each job its own address, for example with `MASTER_PORT` or a file that does not exist yet",
        described(own),
        described(&holder)
    ));
    if group.get(GO)?.is_none() {
        leave(group, &error.to_string(), || ());
    }
    Err(error)
}

fn claim_key(rank: u32) -> String {
    format!("trainer/claim/{rank}")
}

/// Names the ranks that have not joined yet.
fn missing(group: &Group) -> String {
    const MOST: usize = 8;
    let is_missing = |rank: &u32| matches!(group.get(&claim_key(*rank)), Ok(None));
    let missing: Vec<String> =
        (0..group.size()).filter(is_missing).take(MOST).map(|rank| rank.to_string()).collect();
    if missing.is_empty() { String::new() } else { format!("; missing: {}", missing.join(", ")) }
}

/// Raises the limit on the open files of this process if necessary. Returns an error if the limit
/// remains too low for the connections to other ranks. Each rank has connections to a few ranks for
/// control messages, and more connections to a few ranks in each process group. The process that
/// serves the store also has connections to all ranks.
fn check_files(group: &Group) -> Result<()> {
    let size = group.size();
    let Ok(open) = files::entries(Path::new("/proc/self/fd")) else { return Ok(()) };
    let peers = 6 * u64::from(size.ilog2() + 1);
    let served = if group.is_server() { 2 * u64::from(size) } else { 0 };
    let needed = open.len() as u64 + peers + served + OTHER_FILES;
    let limit = Group::raise_open_files(needed);
    if limit >= needed {
        return Ok(());
    }
    Err(Error::usage(format!(
        "this process may open {limit} files, but needs {needed} to connect to {} other ranks: raise the limit with `ulimit -n \
         {needed}`, or in the settings of the job",
        size - 1
    )))
}
