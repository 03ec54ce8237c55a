//! Files of named tensors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;

use blake3::Hasher;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::error::{Error, Result};
use crate::io::files::{Links, Output, in_file, open, read_at, read_start, replace_file};
use crate::io::tensor_format::{self, Place, decoded};
use crate::libtorch;

/// The length of a file and its hash.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct FileDigest {
    pub(crate) bytes: u64,
    blake3: String,
}

impl FileDigest {
    pub(crate) fn new(bytes: u64, hasher: &Hasher) -> Self {
        FileDigest { bytes, blake3: hasher.finalize().to_hex().to_string() }
    }

    /// Returns an error unless `length`, the length of the file, is the recorded one. This is
    /// checked before the file is read, so that a corrupted length cannot trigger a huge
    /// allocation.
    fn check_length(&self, path: &Path, length: u64) -> Result<()> {
        if self.bytes == length {
            return Ok(());
        }
        Err(in_file(
            path,
            format!(
                "the file has {length} bytes, but had {} when it was written: it was changed or damaged; \
                 restore it, or use another checkpoint",
                self.bytes
            ),
        ))
    }

    pub(crate) fn check(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.check_length(path, bytes.len() as u64)?;
        self.check_hash(path, blake3::hash(bytes))
    }

    fn check_hash(&self, path: &Path, hash: blake3::Hash) -> Result<()> {
        if self.blake3 != hash.to_hex().as_str() {
            return Err(in_file(
                path,
                "its hash differs from the recorded one: the file was changed or damaged; restore it, or use another checkpoint",
            ));
        }
        Ok(())
    }
}

/// The number of bytes above which hashing takes longer than starting a thread.
const WORTH_A_THREAD: usize = 1 << 20;

/// The number of bytes that are hashed and written at a time. Meanwhile the disk stores those
/// before.
const PIECE: usize = 1 << 24;

/// Writes tensors to a new file in the format `safetensors`, and waits until the file is on disk. A
/// tensor that is on the CPU and contiguous is not copied; all others are copied one at a time.
pub(crate) fn write(file: &mut Output, tensors: &[(String, Tensor)]) -> Result<FileDigest> {
    let (header, order) = tensor_format::header(tensors).map_err(|why| in_file(file.path(), why))?;
    let mut hasher = Hasher::new();
    let mut bytes = 0;
    let mut put = |file: &mut Output, part: &[u8]| {
        bytes += part.len() as u64;
        if part.len() < WORTH_A_THREAD {
            hasher.update(part);
            return file.write(part);
        }
        // One core copies while another hashes.
        let (is_hashed, written) = thread::scope(|scope| {
            let hashing = thread::Builder::new().spawn_scoped(scope, || {
                hasher.update(part);
            });
            (hashing.is_ok(), file.write(part))
        });
        if !is_hashed {
            hasher.update(part); // there was no memory for a thread
        }
        written
    };
    file.while_flushed(|file| {
        put(file, &header)?;
        for (name, tensor) in order {
            let bytes = libtorch::bytes(tensor, format_args!("`{name}`"))?;
            bytes.chunks(PIECE).try_for_each(|piece| put(file, piece))?;
        }
        Ok::<_, Error>(())
    })?;
    file.sync()?;
    Ok(FileDigest::new(bytes, &hasher))
}

/// The number of bytes of a file that are read at a time.
const BLOCK: u64 = 1 << 22;

/// A file of a checkpoint whose length and hash are verified, and whose tensors are read when they
/// are needed.
///
/// The file is read twice, so that nothing of its size is held in memory: first to verify all of it
/// before anything changes, then for the tensors. The second time, the hash of each block is
/// compared with that of the first time, so that a change in between is an error.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// The hash of each block.
    hashes: Vec<blake3::Hash>,
    /// The block that was read last, and its index. It never grows.
    block: RefCell<(Option<usize>, Vec<u8>)>,
    places: BTreeMap<String, Place>,
}

impl TensorFile {
    /// Opens a file, and verifies its length and hash.
    pub(crate) fn open(path: &Path, digest: &FileDigest) -> Result<Self> {
        let (file, length) = open(path, Links::Refuse)?;
        digest.check_length(path, length)?;
        let mut all = Hasher::new();
        let mut hashes = Vec::new();
        let mut block = Vec::new();
        reserve(path, &mut block, length.min(BLOCK))?;
        for begin in (0..length).step_by(BLOCK as usize) {
            block.resize((length - begin).min(BLOCK) as usize, 0);
            read_at(path, &file, begin, &mut block)?;
            all.update(&block);
            hashes.push(blake3::hash(&block));
        }
        digest.check_hash(path, all.finalize())?;
        let mut opened = TensorFile {
            path: path.to_owned(),
            file,
            length,
            hashes,
            block: RefCell::new((None, block)),
            places: BTreeMap::new(),
        };
        let size = opened.bytes(0..length.min(8))?;
        let size = size.first_chunk().map_or(0, |size| u64::from_le_bytes(*size));
        let start = opened.bytes(0..size.saturating_add(8).min(length))?;
        opened.places = tensor_format::places(&start, length).map_err(|why| in_file(path, why))?;
        Ok(opened)
    }

    /// The tensors of the file by name.
    pub(crate) fn places(&self) -> &BTreeMap<String, Place> {
        &self.places
    }

    /// Reads all tensors.
    pub(crate) fn read_all(&self) -> Result<BTreeMap<String, Tensor>> {
        self.places.iter().map(|(name, place)| Ok((name.clone(), self.read(name, place)?))).collect()
    }

    fn read(&self, name: &str, place: &Place) -> Result<Tensor> {
        let bytes = self.bytes(place.range.clone())?;
        decoded(name, &bytes, &place.shape, place.kind).map_err(|why| in_file(&self.path, why))
    }

    /// Copies a tensor into one of the same shape and dtype. A large one is copied in pieces.
    pub(crate) fn copy_into(&self, name: &str, place: &Place, own: &mut Tensor) -> Result<()> {
        let width = place.kind.elt_size_in_bytes() as u64;
        let Range { start, end } = place.range;
        if end - start <= BLOCK || start % width != 0 || !own.is_contiguous() {
            return Ok(own.f_copy_(&self.read(name, place)?)?);
        }
        let flat = own.f_view([-1])?;
        let mut done = 0;
        self.each_piece(place.range.clone(), |piece| {
            let count = (piece.len() as u64 / width).cast_signed();
            let values =
                decoded(name, piece, &[count], place.kind).map_err(|why| in_file(&self.path, why))?;
            flat.f_narrow(0, done, count)?.f_copy_(&values)?;
            done += count;
            Ok(())
        })
    }

    fn bytes(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        reserve(&self.path, &mut bytes, range.end - range.start)?;
        self.each_piece(range, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Calls `each` with the bytes of a range in order, a part of a block at a time.
    fn each_piece(&self, range: Range<u64>, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (known, block) = &mut *self.block.borrow_mut();
        let mut position = range.start;
        while position < range.end {
            let nth = (position / BLOCK) as usize;
            let begin = nth as u64 * BLOCK;
            if *known != Some(nth) {
                *known = None;
                block.resize((self.length - begin).min(BLOCK) as usize, 0);
                read_at(&self.path, &self.file, begin, block)?;
                if self.hashes[nth] != blake3::hash(block) {
                    let text = "the file was changed while it was read, so what was loaded is incomplete: resume again, in a new \
                                process";
                    return Err(in_file(&self.path, text));
                }
                *known = Some(nth);
            }
            let end = range.end.min(begin + block.len() as u64);
            each(&block[(position - begin) as usize..(end - begin) as usize])?;
            position = end;
        }
        Ok(())
    }
}

/// Makes room for a number of bytes.
fn reserve(path: &Path, bytes: &mut Vec<u8>, length: u64) -> Result<()> {
    let room = usize::try_from(length).ok().and_then(|length| bytes.try_reserve_exact(length).ok());
    room.ok_or_else(|| in_file(path, format!("not enough memory to read {length} bytes")))
}

/// Reads the tensors in a checkpoint file, and verifies the file's length and hash.
pub(crate) fn load_own(path: &Path, digest: &FileDigest) -> Result<BTreeMap<String, Tensor>> {
    TensorFile::open(path, digest)?.read_all()
}

/// Atomically writes tensors to a `safetensors` file. Use this for an export, and
/// [`State`](super::State) for what a resume needs.
///
/// ```
/// use trainer::checkpoint::{read_tensors, write_tensors};
/// use trainer::prelude::*;
///
/// # let path = std::env::temp_dir().join(format!("trainer-means-{}.safetensors", std::process::id()));
/// write_tensors(&path, &[("mean".to_owned(), Tensor::from_slice(&[1.0_f32, 2.0]))])?;
/// assert_eq!(read_tensors(&path)?["mean"], Tensor::from_slice(&[1.0_f32, 2.0]));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error if the values of a tensor cannot be read, if two tensors have the same name, if
/// the file cannot be written, or if it exists but is not a `safetensors` file.
pub fn write_tensors(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    replace_file(path, check_format, |file| write(file, tensors).map(drop))
}

/// Returns the tensors of a `safetensors` file by name, on the CPU.
///
/// # Errors
///
/// Returns an error if the file cannot be read or is not a `safetensors` file.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    tensor_format::from_bytes(&read(path)?).map_err(|why| in_file(path, why))
}

/// Reads the bytes of a file of weights whose format is not known yet.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let (file, length) = open(path, Links::Follow)?;
    Ok(read_start(path, &file, length)?)
}

/// Returns an error unless a file begins like a `safetensors` file.
fn check_format(path: &Path) -> Result<()> {
    let (file, length) = open(path, Links::Refuse)?;
    let start = read_start(path, &file, length.min(9))?;
    let header = start.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    match (header, start.last()) {
        (Some(header), Some(b'{')) if header <= length - 8 => Ok(()),
        _ => Err(in_file(
            path,
            "this file is not a safetensors file, so it is not replaced: choose another name",
        )),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "changes a file as another program would")]
mod tests {
    use std::{env, fs, process};

    use tch::{Device, Kind};

    use super::*;
    use crate::io::files::create;

    #[test]
    fn tensors_are_copied_in_blocks_and_a_file_that_changes_meanwhile_is_reported() {
        let path = env::temp_dir().join(format!("trainer-tensors-{}.safetensors", process::id()));
        let _ = fs::remove_file(&path);
        let cpu = |kind| (kind, Device::Cpu);
        let count = (5 * BLOCK / 8).cast_signed() + 3; // several blocks, and a part of one
        let tensors = [
            ("bytes".to_owned(), Tensor::from_slice(&[1u8, 2, 3])),
            ("large".to_owned(), Tensor::arange(count, cpu(Kind::Double))),
            ("matrix".to_owned(), Tensor::randn([1100, 1000], cpu(Kind::Float))),
            ("none".to_owned(), Tensor::zeros([0], cpu(Kind::Half))),
        ];
        let digest = write(&mut create(&path).unwrap(), &tensors).unwrap();

        let file = TensorFile::open(&path, &digest).unwrap();
        assert_eq!(
            file.read_all().unwrap(),
            tensors.iter().map(|(name, it)| (name.clone(), it.copy())).collect()
        );
        for (name, saved) in &tensors {
            let place = &file.places()[name];
            let mut own = saved.zeros_like();
            file.copy_into(name, place, &mut own).unwrap();
            assert_eq!(own, *saved, "{name}");
        }
        let mut transposed = Tensor::zeros([1000, 1100], cpu(Kind::Float)).tr();
        file.copy_into("matrix", &file.places()["matrix"], &mut transposed).unwrap();
        assert_eq!(transposed, tensors[2].1);

        let file = TensorFile::open(&path, &digest).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = TensorFile::open(&path, &digest).unwrap_err().to_string();
        assert!(error.contains("its hash differs"), "{error}");
        let mut own = tensors[1].1.zeros_like();
        let error = file.copy_into("large", &file.places()["large"], &mut own).unwrap_err().to_string();
        assert!(error.contains("was changed while it was read"), "{error}");
        fs::remove_file(&path).unwrap();
    }
}
