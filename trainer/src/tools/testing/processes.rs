//! The processes that a test starts, one for each rank.

use std::env;
use std::io::{self, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::rank_harness::{FOLDER, OWN_RANK, Ranks, result_file};
use crate::checkpoint::text::from_text;
use crate::distributed::variables;
use crate::io::files::{Links, TemporaryFolder, create, open, read_start, read_text};
use crate::io::terminal;

/// The maximum number of lines that are printed from the output of a failed rank.
const LINES: usize = 60;

/// The processes of the ranks, and their folder. Dropping this value kills the processes and
/// removes the folder.
pub(super) struct Processes {
    running: Vec<Child>,
    folder: TemporaryFolder,
}

impl Processes {
    pub(super) fn new(ranks: &Ranks) -> Result<Self> {
        let folder = TemporaryFolder::create("trainer-ranks")?;
        Ok(Processes { running: Vec::with_capacity(ranks.count as usize), folder })
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the test again on each rank, and returns the results. Waits until every rank has
    /// ended or is stopped by a signal, but no longer than the timeout.
    pub(super) fn run(
        mut self,
        test: &str,
        ranks: &Ranks,
    ) -> Result<Vec<std::result::Result<String, String>>> {
        for rank in 0..ranks.count {
            self.running.push(self.command(test, ranks, rank)?.spawn()?);
        }
        let since = Instant::now();
        while !self.have_ended()? && since.elapsed() < ranks.timeout {
            thread::sleep(Duration::from_millis(5));
        }
        (0..ranks.count).map(|rank| self.result(rank, ranks)).collect()
    }

    fn command(&self, test: &str, ranks: &Ranks, rank: u32) -> Result<Command> {
        let output = create(&self.output(rank)).map_err(io::Error::other)?.into_file();
        let mut command = Command::new(env::current_exe()?);
        command.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
        // The tests themselves may have been started by a launcher.
        variables().for_each(|name| {
            command.env_remove(name);
        });
        command
            .env("WORLD_SIZE", ranks.count.to_string())
            .env("OMP_NUM_THREADS", "1")
            .env(FOLDER, self.folder())
            .env(OWN_RANK, rank.to_string());
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("MASTER_ADDR", format!("file://{}", self.folder().join("store").display()));
        command.env("TRAINER_RANK_TIMEOUT", (ranks.timeout / 2).as_secs_f64().to_string());
        command.envs(ranks.vars.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    fn output(&self, rank: u32) -> PathBuf {
        self.folder().join(format!("{rank}.output"))
    }

    /// Returns whether every process has ended or is stopped by a signal.
    fn have_ended(&mut self) -> Result<bool> {
        for child in &mut self.running {
            if child.try_wait()?.is_none() && !is_stopped(child.id()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the result of a rank. If the rank has failed, prints the end of its output.
    fn result(&mut self, rank: u32, ranks: &Ranks) -> Result<std::result::Result<String, String>> {
        let child = &mut self.running[rank as usize];
        let ended = child.try_wait()?;
        let id = child.id();
        let reported = read_text(&result_file(self.folder(), rank)).ok();
        let result = match (reported.and_then(|text| from_text(&text).ok()), ended) {
            (Some(result), _) => result,
            (None, Some(status)) if status.success() => {
                Err("the test ended before this call of `Ranks`: it must make the same calls in each process"
                    .to_owned())
            }
            (None, Some(status)) => Err(format!("it ended without a result ({status})")),
            (None, None) if is_stopped(id) => Err("it was stopped by a signal".to_owned()),
            (None, None) => Err(format!("it was killed, because it had not ended after {:?}", ranks.timeout)),
        };
        if result.is_err() {
            self.print(rank);
        }
        Ok(result)
    }

    /// Prints the last lines of a rank's output on standard error. The test harness shows them if
    /// the test fails.
    fn print(&self, rank: u32) {
        let path = self.output(rank);
        let output = open(&path, Links::Refuse).and_then(|(file, length)| read_start(&path, &file, length));
        let output = output.unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = output.lines().collect();
        terminal::eprint_captured(&format!("---- output of rank {rank} ----"));
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            terminal::eprint_captured(line);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
        }
        for child in &mut self.running {
            let _ = child.wait();
        }
    }
}

/// Returns whether a process is stopped by a signal, and therefore does not end. Only Linux reports
/// this; on other systems, returns `false`.
fn is_stopped(process: u32) -> bool {
    let stat = read_text(Path::new(&format!("/proc/{process}/stat"))).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}
