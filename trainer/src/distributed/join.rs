//! Joining the other processes of a launch.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::launch::{Launch, Store};
use super::links::{Links, Shared, cause, check_available, leave};
use super::main_only;
use crate::error::{Error, Result};
use crate::io::files;
use crate::libtorch::dist::{Group, Meeting};

/// The key with the number of ranks that are ready to connect.
const READY: &str = "trainer/ready";

/// The number of files that a connection to another rank needs: one in each process group, and on
/// rank 0 one in the store.
const FILES_PER_RANK: u64 = 4;

/// The number of files that a world needs besides, and that the program may open later.
const OTHER_FILES: u64 = 48;

/// The time between two looks at the store.
const PERIOD: Duration = Duration::from_millis(10);

/// Joins the other processes of a launch.
pub(super) fn join(launch: &Launch) -> Result<Links> {
    let Launch { rank, size, .. } = *launch;
    if size < 2 || rank >= size {
        return Err(Error::usage(format!(
            "cannot join {size} processes as rank {rank}: expected at least 2 processes, and a rank below their number"
        )));
    }
    check_available()?;
    main_only::check("World::join")?;
    let group = connect(launch)?;
    let shared = Arc::new(Shared::new(&group));
    Ok(Links { group, shared, place: None })
}

/// Meets the other processes of a launch, checks that they belong to the same job and can open
/// enough files, and connects to them.
fn connect(launch: &Launch) -> Result<Group> {
    let Launch { rank, size, timeout, .. } = *launch;
    let since = Instant::now();
    let address = match &launch.store {
        Store::File(path) => path.display().to_string(),
        Store::Tcp(host, port) => format!("{host}:{port}"),
    };
    let failed = |why: &str| {
        Error::msg(format!(
            "rank {rank} of {size} could not connect to the other ranks at {address} (timeout {timeout:?}): check that all of \
             them were started with this address, and that no other program uses it ({why})"
        ))
    };
    let group = open(launch).map_err(|error| failed(&error.to_string()))?;
    check_job(&group, launch, &address, since)
        .map_err(|why| why.unwrap_or_else(|| failed("the store is empty")))?;
    if let Err(error) = check_files(size) {
        leave(&group, &error.to_string());
        return Err(error);
    }
    group.count(READY).map_err(|error| failed(&error.to_string()))?;
    loop {
        if let Some(error) = cause(&group)? {
            return Err(error);
        }
        let ready = group.get(READY)?.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        if ready >= size {
            break;
        }
        if since.elapsed() > timeout {
            return Err(failed(&format!("{ready} of {size} ranks have joined")));
        }
        thread::sleep(PERIOD);
    }
    if let Err(error) = group.connect() {
        let error = failed(&error.to_string());
        leave(&group, &error.to_string());
        return Err(error);
    }
    Ok(group)
}

/// Opens the store.
fn open(launch: &Launch) -> Result<Group> {
    let (file, tcp) = match &launch.store {
        Store::File(path) => (Some(path.to_string_lossy()), ("", 0)),
        Store::Tcp(host, port) => (None, (host.as_str(), *port)),
    };
    let interface = std::env::var("GLOO_SOCKET_IFNAME").ok();
    let is_local = file.is_some() || matches!(tcp.0, "localhost" | "127.0.0.1" | "::1");
    Group::open(&Meeting {
        tcp,
        file: file.as_deref(),
        prefix: &launch.prefix(),
        interface: interface.as_deref(),
        own_host: is_local.then_some("127.0.0.1"),
        timeout_ms: i64::try_from(launch.timeout.as_millis()).unwrap_or(i64::MAX),
        rank: launch.rank,
        size: launch.size,
        is_server: launch.rank == 0 && !launch.has_agent,
    })
}

/// Returns an error if the store belongs to another job, or `None` if it belongs to none before the
/// timeout. Rank 0 declares the job.
fn check_job(
    group: &Group,
    launch: &Launch,
    address: &str,
    since: Instant,
) -> std::result::Result<(), Option<Error>> {
    // Without an id, the value must not be empty either.
    let own = format!("job {}", launch.job);
    if launch.rank == 0 {
        group.set_job(&own)?;
    }
    let job = loop {
        match group.job()? {
            Some(job) => break job,
            None if since.elapsed() > launch.timeout => return Err(None),
            None => thread::sleep(PERIOD),
        }
    };
    if job == own {
        return Ok(());
    }
    Err(Some(Error::usage(format!(
        "rank {} of {} cannot connect to the other ranks at {address}: this process belongs to {}, but the store at this address \
         to {}; give each job its own address, for example with `MASTER_PORT`, and a file that does not exist yet",
        launch.rank,
        launch.size,
        named(&own),
        named(&job)
    ))))
}

fn named(job: &str) -> String {
    match job.trim_start_matches("job ") {
        "" => "a job without an id".to_owned(),
        id => format!("the job `{id}`"),
    }
}

/// Raises the limit on the open files of this process if necessary. Returns an error if it is too
/// low for the connections to the other ranks.
fn check_files(size: u32) -> Result<()> {
    let Ok(open) = files::entries(Path::new("/proc/self/fd")) else { return Ok(()) };
    let needed = open.len() as u64 + FILES_PER_RANK * u64::from(size - 1) + OTHER_FILES;
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
