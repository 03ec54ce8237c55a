//! [`Tape`]: reads the events of a tape.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rmp_serde::decode::Error as Decode;

use trainer_files::{Error, Links, in_file, open};

use super::record::{Entry, MAGIC, Position, Process, Record};

/// An event that was recorded on a tape.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A process began to write the tape.
    Process(Arc<Process>),
    /// The program has this hook, or reached this operation or module.
    Entry(Arc<Entry>),
    /// An entry changed values.
    Changed {
        /// The entry that made the changes.
        entry: Arc<Entry>,
        /// The position in the run.
        position: Arc<Position>,
        /// The names of the values, with their new hashes.
        values: Vec<(Arc<str>, u64)>,
    },
    /// The run was resumed, and now has these values.
    Resumed {
        /// The number of training batches before the checkpoint.
        batches: u64,
        /// The position in the run.
        position: Arc<Position>,
        /// The names of all values, with their hashes. Empty in a tape of
        /// [`Level::Steps`](super::Level::Steps).
        values: Vec<(Arc<str>, u64)>,
    },
    /// A checkpoint of the current state was written, after this many training batches.
    Saved(u64),
}

/// The source of the bytes of a tape.
#[derive(Debug)]
enum Source {
    File(BufReader<File>),
    Memory(Cursor<Vec<u8>>),
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::File(file) => file.read(buffer),
            Source::Memory(bytes) => bytes.read(buffer),
        }
    }
}

/// An open tape: an iterator over its events.
#[derive(Debug)]
pub struct Tape {
    path: PathBuf,
    source: Source,
    names: Vec<Arc<str>>,
    entries: Vec<Arc<Entry>>,
    position: Arc<Position>,
    has_ended: bool,
}

impl Tape {
    /// Opens the tape at this path.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or is not a tape of a version that this crate
    /// supports.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let mut file = BufReader::new(open(&path, Links::Refuse)?.0);
        let mut start = Vec::new();
        let read = file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut start);
        read.map_err(|error| in_file(&path, error))?;
        check_start(&path, &start)?;
        Ok(Tape::new(path, Source::File(file)))
    }

    /// Reads a tape from `bytes`, which must begin with [`MAGIC`]. Errors contain `name` instead of
    /// a path.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not a tape of a version that this crate supports.
    pub fn of_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self, Error> {
        let path = name.into();
        check_start(&path, &bytes[..bytes.len().min(MAGIC.len())])?;
        let mut bytes = Cursor::new(bytes);
        bytes.set_position(MAGIC.len() as u64);
        Ok(Tape::new(path, Source::Memory(bytes)))
    }

    fn new(path: PathBuf, source: Source) -> Self {
        Tape {
            path,
            source,
            names: Vec::new(),
            entries: Vec::new(),
            position: Arc::default(),
            has_ended: false,
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the same tape again, at its beginning.
    pub(super) fn reopened(&self) -> Result<Self, Error> {
        match &self.source {
            Source::File(_) => Tape::open(&self.path),
            Source::Memory(bytes) => Tape::of_bytes(&self.path, bytes.get_ref().clone()),
        }
    }

    /// Reads the next record; `None` at the end.
    fn record(&mut self) -> Result<Option<Record>, Error> {
        match rmp_serde::from_read(&mut self.source) {
            Ok(record) => Ok(Some(record)),
            Err(Decode::InvalidMarkerRead(error) | Decode::InvalidDataRead(error)) => {
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    return Ok(None); // a record that was cut off
                }
                Err(in_file(&self.path, error))
            }
            Err(error) => Err(self.damaged(&error.to_string())),
        }
    }

    fn damaged(&self, why: &str) -> Error {
        in_file(&self.path, format!("the tape is damaged: {why}"))
    }

    /// Replaces the number of each value's name with the name itself.
    fn named(&self, values: Vec<(u32, u64)>) -> Result<Vec<(Arc<str>, u64)>, Error> {
        let named = values.into_iter().map(|(name, hash)| {
            let name = self.names.get(name as usize).ok_or_else(|| self.damaged("a value has no name"))?;
            Ok((Arc::clone(name), hash))
        });
        named.collect()
    }

    fn event(&mut self) -> Result<Option<Event>, Error> {
        loop {
            let Some(record) = self.record()? else { return Ok(None) };
            return Ok(Some(match record {
                Record::Process(process) => {
                    self.names.clear();
                    self.entries.clear();
                    Event::Process(Arc::new(process))
                }
                Record::Name(name) => {
                    self.names.push(name.into());
                    continue;
                }
                Record::Entry(entry) => {
                    let entry = Arc::new(entry);
                    self.entries.push(Arc::clone(&entry));
                    Event::Entry(entry)
                }
                Record::At(position) => {
                    self.position = Arc::new(position);
                    continue;
                }
                Record::Changed(entry, values) => {
                    let entry = self.entries.get(entry as usize);
                    let entry = Arc::clone(entry.ok_or_else(|| self.damaged("a change has no entry"))?);
                    let position = Arc::clone(&self.position);
                    Event::Changed { entry, position, values: self.named(values)? }
                }
                Record::Resumed(batches, values) => {
                    let position = Arc::clone(&self.position);
                    Event::Resumed { batches, position, values: self.named(values)? }
                }
                Record::Saved(batches) => Event::Saved(batches),
            }));
        }
    }
}

/// Returns an error if `start` is not the start of a tape in a version that this crate supports.
fn check_start(path: &Path, start: &[u8]) -> Result<(), Error> {
    if start == MAGIC {
        return Ok(());
    }
    let why = match start.starts_with(b"trainer tape ") {
        true => "this program cannot read this version of a tape: use a newer program",
        false => "this is not a tape",
    };
    Err(in_file(path, why))
}

impl Iterator for Tape {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let event = self.event().transpose();
        self.has_ended = !matches!(event, Some(Ok(_)));
        event
    }
}
