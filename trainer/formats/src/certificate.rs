//! The certificate of a run: a chain of hashes that covers all training batches from the start of
//! the run to its end, with a link at each checkpoint.
//!
//! The file has one JSON object per line: a [`Header`], then [`Link`]s. It is a proof only together
//! with the program and the data: to verify the stretch between two links, a verifier trains it
//! again from the checkpoint at the first link, and compares the result with the second link.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The name of the certificate in the folder of a run.
pub const CERTIFICATE_FILE: &str = "run.certificate";

/// The version of the format.
pub const VERSION: u32 = 1;

/// The first line of a certificate, which begins the chain.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Header {
    /// The version of the format.
    pub certificate: u32,
    /// The number of training batches before the chain. This is 0, except in a run that begins with
    /// a part of another run.
    pub batches: u64,
    /// The circumstances that can make the same program produce a different result: libtorch,
    /// compiler, processor, threads and others.
    pub circumstances: BTreeMap<String, String>,
    /// The settings of the trainer, the optimizers and the hooks.
    pub settings: BTreeMap<String, String>,
    /// The hooks that affect the result, in dispatch order at each moment.
    pub hooks: BTreeMap<String, Vec<String>>,
    /// The versions of the crates that define these hooks.
    pub crates: BTreeMap<String, String>,
    /// The descriptions of the training data and of the validation data.
    pub data: [String; 2],
    /// The hash of the state at the start of training: weights, optimizers, random number
    /// generators and hooks.
    pub state: String,
}

/// The position of a link in the loop.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Right after a training batch.
    Batch,
    /// Between two epochs.
    Epoch,
    /// At the end of a fit.
    End,
    /// At the start of a fit after the first one.
    Start,
}

/// A link of the chain.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Link {
    /// The number of training batches so far.
    pub batches: u64,
    /// The position in the loop.
    pub place: Place,
    /// The hash of the losses and data of all training batches so far.
    pub steps: String,
    /// The hash of the state: weights, optimizers, random number generators and hooks.
    pub state: String,
    /// The hash of the previous line and of the fields above.
    pub link: String,
}

impl Link {
    /// Returns the link that follows the line whose hash is `previous`.
    #[must_use]
    pub fn after(previous: &str, batches: u64, place: Place, steps: String, state: String) -> Self {
        let mut link = Link { batches, place, steps, state, link: String::new() };
        link.link = link.hash(previous);
        link
    }

    fn hash(&self, previous: &str) -> String {
        let Link { batches, place, steps, state, .. } = self;
        hash(&format!("{previous} {batches} {place:?} {steps} {state}"))
    }
}

impl Header {
    /// Returns the hash of the header, which begins the chain.
    ///
    /// # Errors
    ///
    /// Returns an error if the header cannot be written as JSON, which does not happen in practice.
    pub fn hash(&self) -> Result<String, serde_json::Error> {
        Ok(hash(&serde_json::to_string(self)?))
    }
}

/// Returns the hash of a text.
fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Adds a training batch to `steps`, the hash of the batches before it, and returns the new hash.
/// `data` is the hash of the batch's data.
#[must_use]
pub fn add_batch(steps: &str, batch: u64, loss: Option<f64>, data: &str) -> String {
    hash(&format!("{steps} {batch} {:?} {data}", loss.map(f64::to_bits)))
}

/// A certificate in which each line follows from the previous one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The start of the chain.
    pub header: Header,
    /// The links, at least one.
    pub links: Vec<Link>,
}

/// A part of a run that can be trained again and compared. It begins at a link, or at the start of
/// the run, and ends at the next link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The index, counted from 0, of the link at the end of the stretch.
    pub link: usize,
    /// The number of training batches before the start of the stretch.
    pub start: u64,
    /// The number of training batches before the end of the stretch.
    pub end: u64,
}

impl fmt::Display for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start == self.end {
            true => write!(f, "the end of the fit after {} training batches", self.end),
            false => write!(f, "the training batches {}..{}", self.start, self.end),
        }
    }
}

/// An error that occurs when a certificate is read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub why: String,
}

impl Certificate {
    /// Reads the certificate at this path, and checks that each line follows from the previous one.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the file cannot be read, or is not a certificate of a version that this crate supports;
    /// - a line was changed, removed or added;
    /// - the certificate contains no links.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let fail = |why: String| Error { path: path.to_owned(), why };
        let text = fs::read_to_string(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                fail("the run has no certificate: record one with `.hook(Certificate::new())`".to_owned())
            }
            _ => fail(error.to_string()),
        })?;
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let header: Header = serde_json::from_str(first)
            .map_err(|error| fail(format!("this is not a certificate of version {VERSION}: {error}")))?;
        if header.certificate != VERSION {
            return Err(fail(format!(
                "this certificate has the version {}, and this program reads version {VERSION}",
                header.certificate
            )));
        }
        let mut previous = header.hash().map_err(|error| fail(error.to_string()))?;
        let mut links: Vec<Link> = Vec::new();
        for (nth, line) in lines.enumerate() {
            let number = nth + 2;
            let link: Link = serde_json::from_str(line)
                .map_err(|error| fail(format!("line {number} is not a link of the chain: {error}")))?;
            if link.link != link.hash(&previous) {
                return Err(fail(format!(
                    "line {number} does not follow from the lines before it: one of them was changed"
                )));
            }
            if links.last().is_some_and(|before| before.batches > link.batches) {
                return Err(fail(format!(
                    "line {number} has fewer training batches than the line before it"
                )));
            }
            previous.clone_from(&link.link);
            links.push(link);
        }
        if links.is_empty() {
            return Err(fail(
                "the certificate has no link yet: the run has written no checkpoint".to_owned(),
            ));
        }
        Ok(Certificate { header, links })
    }

    /// Returns the stretches of the run that can be trained again. They do not include what a
    /// program does between two fits. In fits after the first one, they also do not include the
    /// batches between the start of the fit and its first checkpoint.
    #[must_use]
    pub fn stretches(&self) -> Vec<Stretch> {
        let mut stretches = Vec::new();
        let mut start = self.header.batches;
        let mut is_begun = true;
        for (link, Link { batches, place, .. }) in self.links.iter().enumerate() {
            if *place != Place::Start && is_begun {
                stretches.push(Stretch { link, start, end: *batches });
            }
            start = *batches;
            is_begun = *place != Place::Start;
        }
        stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> Vec<String> {
        let header = Header {
            certificate: VERSION,
            batches: 0,
            circumstances: BTreeMap::from([("threads".to_owned(), "1".to_owned())]),
            settings: BTreeMap::new(),
            hooks: BTreeMap::new(),
            crates: BTreeMap::new(),
            data: ["a".to_owned(), "none".to_owned()],
            state: "s".to_owned(),
        };
        let mut previous = header.hash().unwrap();
        let mut lines = vec![serde_json::to_string(&header).unwrap()];
        for nth in 1..=5 {
            let steps = add_batch("s", nth, Some(0.5), "data");
            let link = Link::after(&previous, nth * 10, Place::Batch, steps, format!("state {nth}"));
            previous.clone_from(&link.link);
            lines.push(serde_json::to_string(&link).unwrap());
        }
        lines
    }

    fn read(lines: &[String]) -> Result<Certificate, Error> {
        let name = format!("trainer-certificate-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, lines.join("\n")).unwrap();
        let read = Certificate::read(&path);
        fs::remove_file(&path).unwrap();
        read
    }

    #[test]
    fn a_chain_is_read_and_divided_into_stretches() {
        let stretches = read(&certificate()).unwrap().stretches();
        assert_eq!(stretches.len(), 5);
        assert_eq!(stretches[2], Stretch { link: 2, start: 20, end: 30 });
    }

    #[test]
    fn every_changed_removed_added_or_swapped_line_is_detected() {
        let lines = certificate();
        for nth in 0..lines.len() {
            for (at, byte) in lines[nth].bytes().enumerate().filter(|(_, byte)| byte.is_ascii_alphanumeric())
            {
                let mut changed = lines.clone();
                let other = if byte == b'7' { "8" } else { "7" };
                changed[nth].replace_range(at..=at, other);
                assert!(read(&changed).is_err(), "{}", changed[nth]);
            }
            // Removing the last link is not detected: the result is the chain of a shorter run.
            let mut shorter = lines.clone();
            shorter.remove(nth);
            assert_eq!(read(&shorter).is_ok(), nth == lines.len() - 1, "{nth}");
            let mut longer = lines.clone();
            longer.insert(nth, lines[nth].clone());
            assert!(read(&longer).is_err(), "{nth}");
            if nth > 0 {
                let mut exchanged = lines.clone();
                exchanged.swap(nth - 1, nth);
                assert!(read(&exchanged).is_err(), "{nth}");
            }
        }
        assert!(read(&lines[..1]).unwrap_err().to_string().ends_with("the run has written no checkpoint"));
    }
}
