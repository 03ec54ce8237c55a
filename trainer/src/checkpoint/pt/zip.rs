//! Zip archives as `torch.save` writes them: without compression. The code in archives of
//! TorchScript is compressed, so an entry that cannot be read is an error only if it is read.

use std::collections::HashMap;

use crate::error::{Error, Result, shortened};

/// The signature of the record at the end of an archive, and the length of the record.
const END: (&[u8], usize) = (b"PK\x05\x06", 22);
/// The signature and the length of the ZIP64 locator, which precedes the record at the end.
const LOCATOR: (&[u8], usize) = (b"PK\x06\x07", 20);
const END_64: (&[u8], usize) = (b"PK\x06\x06", 56);
const CENTRAL: (&[u8], usize) = (b"PK\x01\x02", 46);
const LOCAL: (&[u8], usize) = (b"PK\x03\x04", 30);
/// The identifier of the extra field that contains 64-bit sizes.
const ZIP_64: u16 = 1;

/// The entries of an archive by name.
pub(super) struct Archive<'a> {
    entries: HashMap<&'a str, ZipMember<'a>>,
    /// Whether the archive was written with checksums. After
    /// `torch.serialization.set_crc32_options(False)`, PyTorch writes 0 as the checksum of every
    /// entry.
    has_checksums: bool,
}

/// The data of an entry, and its recorded CRC-32.
struct ZipMember<'a> {
    data: &'a [u8],
    crc32: u32,
    /// Why the data cannot be read, if it cannot.
    problem: Option<&'static str>,
}

impl<'a> Archive<'a> {
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().copied()
    }

    /// Returns the data of an entry; `None` if there is no entry with this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the data does not match its checksum, or is compressed or encrypted.
    pub(super) fn read(&self, name: &str) -> Result<Option<&'a [u8]>> {
        let Some(ZipMember { data, crc32, problem }) = self.entries.get(name) else { return Ok(None) };
        if let Some(problem) = problem {
            return Err(damaged(&format!("the entry `{}` {problem}", shortened(name))));
        }
        if self.has_checksums && crc32fast::hash(data) != *crc32 {
            return Err(Error::msg(format!(
                "the record `{}` does not match its checksum: the file was changed or damaged; copy or download it again",
                shortened(name)
            )));
        }
        Ok(Some(data))
    }
}

/// Reads the directory of an archive.
///
/// # Errors
///
/// Returns an error if the archive is damaged, if entries overlap, or if two have the same name.
pub(super) fn open(bytes: &[u8]) -> Result<Archive<'_>> {
    let (count, mut at) = directory(bytes)?;
    let mut found: HashMap<&str, ZipMember<'_>> = HashMap::new();
    let mut ranges = Vec::new();
    for _ in 0..count {
        let header = record(bytes, at, CENTRAL)?;
        let lengths = [28, 30, 32].map(|field| usize::from(u16_at(header, field)));
        let name = slice(bytes, at.saturating_add(CENTRAL.1), lengths[0])?;
        let extra = slice(bytes, at.saturating_add(CENTRAL.1 + lengths[0]), lengths[1])?;
        at = at.saturating_add(CENTRAL.1 + lengths[0] + lengths[1] + lengths[2]);
        let name = std::str::from_utf8(name).map_err(|_| damaged("an entry has a name that is not UTF-8"))?;
        let mut sizes = [24, 20, 42].map(|field| u64::from(u32_at(header, field)));
        widen(&mut sizes, extra);
        let [size, stored, start] = sizes;
        let problem = match () {
            () if u16_at(header, 8) & 1 != 0 => Some("is encrypted"),
            () if u16_at(header, 10) != 0 => Some("is compressed, which `torch.save` never does"),
            () if size != stored => Some("has two different sizes"),
            () => None,
        };
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let local = record(bytes, start, LOCAL)?;
        let before = LOCAL.1 + usize::from(u16_at(local, 26)) + usize::from(u16_at(local, 28));
        let data = slice(bytes, start.saturating_add(before), usize::try_from(stored).unwrap_or(usize::MAX))?;
        ranges.try_reserve(1)?;
        found.try_reserve(1)?;
        ranges.push((start, start + before + data.len()));
        if found.insert(name, ZipMember { data, crc32: u32_at(header, 16), problem }).is_some() {
            return Err(damaged(&format!("the entry `{}` occurs twice", shortened(name))));
        }
    }
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(damaged("two entries overlap"));
    }
    let has_checksums = found.values().any(|entry| entry.crc32 != 0);
    Ok(Archive { entries: found, has_checksums })
}

/// Returns the number of entries, and the offset of the first record of the central directory.
fn directory(bytes: &[u8]) -> Result<(u64, usize)> {
    // A comment of up to 65,535 bytes may follow the record.
    let first = bytes.len().saturating_sub(END.1 + usize::from(u16::MAX));
    let last = bytes.len().checked_sub(END.1).ok_or_else(truncated)?;
    let at = (first..=last).rev().find(|at| bytes[*at..].starts_with(END.0)).ok_or_else(truncated)?;
    let end = record(bytes, at, END)?;
    let count = u64::from(u16_at(end, 10));
    let start = u64::from(u32_at(end, 16));
    let is_64 = count == u64::from(u16::MAX) || start == u64::from(u32::MAX);
    let (count, start) = if is_64 {
        let locator = record(bytes, at.checked_sub(LOCATOR.1).ok_or_else(truncated)?, LOCATOR)?;
        let end = record(bytes, usize::try_from(u64_at(locator, 8)).unwrap_or(usize::MAX), END_64)?;
        (u64_at(end, 32), u64_at(end, 48))
    } else {
        (count, start)
    };
    Ok((count, usize::try_from(start).unwrap_or(usize::MAX)))
}

/// Replaces the sizes and the offset that do not fit into 32 bits with the values in the extra
/// field.
fn widen(sizes: &mut [u64; 3], mut extra: &[u8]) {
    while let Some((header, rest)) = extra.split_at_checked(4) {
        let Some((mut field, next)) = rest.split_at_checked(usize::from(u16_at(header, 2))) else { return };
        extra = next;
        if u16_at(header, 0) == ZIP_64 {
            for size in sizes.iter_mut().filter(|size| **size == u64::from(u32::MAX)) {
                let Some((value, rest)) = field.split_at_checked(8) else { return };
                *size = u64_at(value, 0);
                field = rest;
            }
        }
    }
}

/// Returns the record at an offset, after checking its signature.
fn record<'a>(bytes: &'a [u8], at: usize, (signature, length): (&[u8], usize)) -> Result<&'a [u8]> {
    let record = slice(bytes, at, length)?;
    if record.starts_with(signature) {
        Ok(record)
    } else {
        Err(damaged("a record is missing at its recorded offset"))
    }
}

fn slice(bytes: &[u8], at: usize, length: usize) -> Result<&[u8]> {
    at.checked_add(length).and_then(|end| bytes.get(at..end)).ok_or_else(truncated)
}

/// Reads a little-endian number from a record. Panics if the record is too short.
fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([record[at], record[at + 1]])
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from(u16_at(record, at)) | u32::from(u16_at(record, at + 2)) << 16
}

fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from(u32_at(record, at)) | u64::from(u32_at(record, at + 4)) << 32
}

fn truncated() -> Error {
    Error::msg("the zip archive is truncated: copy or download the file again")
}

fn damaged(what: &str) -> Error {
    Error::msg(format!(
        "the zip archive cannot be read: {what}; copy or download the file again, or save it again in Python"
    ))
}
