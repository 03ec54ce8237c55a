//! [`TokenFile`]: a file with the tokens of a text.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::Rng;

use super::foreign::Found;
use super::npy;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::with_files;
use crate::data::rng::RowRng;
use crate::data::sequence::Sequence;
use crate::error::Result;
use crate::io::files::{Links, in_file, open, read_at};
use crate::io::format::Format;

/// The type of the tokens in a file, in little-endian byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenType {
    U8,
    U16,
    U32,
    I32,
    I64,
}

impl TokenType {
    fn bytes(self) -> usize {
        match self {
            TokenType::U8 => 1,
            TokenType::U16 => 2,
            TokenType::U32 | TokenType::I32 => 4,
            TokenType::I64 => 8,
        }
    }

    /// Returns the tokens in these bytes.
    fn decode(self, bytes: &[u8]) -> Vec<i64> {
        fn each<const N: usize>(bytes: &[u8], number: fn([u8; N]) -> i64) -> Vec<i64> {
            bytes.as_chunks().0.iter().map(|token| number(*token)).collect()
        }
        match self {
            TokenType::U8 => each(bytes, |[token]| i64::from(token)),
            TokenType::U16 => each(bytes, |token| i64::from(u16::from_le_bytes(token))),
            TokenType::U32 => each(bytes, |token| i64::from(u32::from_le_bytes(token))),
            TokenType::I32 => each(bytes, |token| i64::from(i32::from_le_bytes(token))),
            TokenType::I64 => each(bytes, i64::from_le_bytes),
        }
    }
}

/// A file with the tokens of a text, which may be larger than memory: a numpy `.npy` file, or
/// tokens without a header, as in the `.bin` files of nanoGPT.
///
/// Use this when a text has already been tokenized into one file. If the model must not attend from
/// one document to another, keep each document as a row, and [pack](super::super::DataLoader::pack)
/// the rows.
///
/// ```
/// use trainer::data::{Sequences, TokenFile};
/// use trainer::prelude::*;
///
/// # let path = std::env::temp_dir().join(format!("trainer-tokens-{}.bin", std::process::id()));
/// # std::fs::write(&path, (0..1000_u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>())?;
/// let tokens = TokenFile::u16(&path)?;
/// let mut train = DataLoader::new(tokens.windows(64, 10_000)).batch_size(8).shuffle(42);
/// let mut valid = DataLoader::new(tokens.sequence(64)).batch_size(8);
/// let batch: Sequences = valid.batches(0, 0)?.next().expect("there are two batches")?;
/// assert_eq!(batch.tokens.size(), [8, 64]);
/// assert_eq!(batch.targets.select(1, 63), batch.tokens.select(1, 63) + 1);
/// # train.batches(0, 0)?.next().unwrap()?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// A row is read from the file when it is needed, and the operating system caches what is read
/// often. The file is not mapped into memory. If it is shortened during the run, reading it returns
/// an error, whereas a mapped file could kill the process.
#[derive(Clone, Debug)]
pub struct TokenFile(Arc<Tokens>);

#[derive(Debug)]
struct Tokens {
    path: PathBuf,
    file: File,
    kind: TokenType,
    /// The position of the first token in the file, in bytes.
    start: u64,
    count: usize,
}

impl TokenFile {
    /// Opens a `.npy` file with a one-dimensional array of integers: 8-, 16- or 32-bit unsigned, or
    /// 32- or 64-bit signed.
    ///
    /// # Errors
    ///
    /// Returns an error if the file
    ///
    /// - cannot be read;
    /// - is not a `.npy` file;
    /// - is shorter or longer than its header says;
    /// - has an array of a different type or shape.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (file, length) = open(path, Links::Follow)?;
        let header = npy::read_header(path, &file, length)?;
        let held = (length - header.start) / header.kind.bytes() as u64;
        if held != header.count || (length - header.start) % header.kind.bytes() as u64 != 0 {
            let text = format!(
                "its header declares {} tokens, but {} bytes follow, which hold {held}: the file is incomplete or damaged",
                header.count,
                length - header.start
            );
            return Err(in_file(path, text));
        }
        Self::new(path, file, header.kind, header.start, header.count)
    }

    /// Opens a file of bytes, each of which is a token: a text file, to train on bytes or on ASCII
    /// characters without a tokenizer.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is a `.npy` file.
    pub fn u8(path: impl AsRef<Path>) -> Result<Self> {
        Self::without_header(path.as_ref(), TokenType::U8)
    }

    /// Opens a file of 16-bit unsigned integers without a header, in little-endian byte order, like
    /// nanoGPT's `train.bin`.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, has a header or another format, or has an odd
    /// number of bytes.
    pub fn u16(path: impl AsRef<Path>) -> Result<Self> {
        Self::without_header(path.as_ref(), TokenType::U16)
    }

    /// Opens a file of 32-bit unsigned integers without a header, in little-endian byte order.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, has a header or another format, or has a number
    /// of bytes that is not a multiple of 4.
    pub fn u32(path: impl AsRef<Path>) -> Result<Self> {
        Self::without_header(path.as_ref(), TokenType::U32)
    }

    fn without_header(path: &Path, kind: TokenType) -> Result<Self> {
        let (file, length) = open(path, Links::Follow)?;
        let size = kind.bytes() as u64;
        let found = Found::in_file(path, &file, length)?;
        match found.format {
            Format::Npy => {
                return Err(in_file(
                    path,
                    "it is a `.npy` file, with a header: open it with `TokenFile::open`",
                ));
            }
            // The bytes of a text are tokens.
            _ if kind == TokenType::U8 && found.is_text() => {}
            format if format.is_certain() || found.is_long_text() => {
                return Err(in_file(path, found.refused("tokens without a header")));
            }
            _ => {}
        }
        if length % size != 0 {
            let text = format!(
                "it has {length} bytes, which is not a multiple of {size}: the file is incomplete, or its tokens have another size"
            );
            return Err(in_file(path, text));
        }
        Self::new(path, file, kind, 0, length / size)
    }

    fn new(path: &Path, file: File, kind: TokenType, start: u64, count: u64) -> Result<Self> {
        let count = usize::try_from(count).map_err(|error| in_file(path, error))?;
        Ok(TokenFile(Arc::new(Tokens { path: path.to_owned(), file, kind, start, count })))
    }

    /// Returns the number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.count
    }

    /// Returns whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.count == 0
    }

    /// Returns all tokens in consecutive rows of `length` tokens: row i starts at token i ·
    /// `length`. The target of each token is the next token in the file, even at the end of a row.
    /// Tokens at the end of the file that do not fill a row are left out.
    ///
    /// Use this when each token should be used once per epoch: for validation, or, shuffled, for
    /// training.
    ///
    /// # Panics
    ///
    /// Panics if `length` is 0.
    #[must_use]
    #[track_caller]
    pub fn sequence(&self, length: usize) -> TokenRows {
        assert!(length > 0, "`.sequence(0)`: expected a length of at least 1");
        let rows = self.0.count.saturating_sub(1) / length;
        TokenRows { tokens: Arc::clone(&self.0), length, rows, is_random: false }
    }

    /// Returns `rows` rows of `length` tokens per epoch, each starting at a random position. The
    /// target of each token is the next token in the file, even at the end of a row.
    ///
    /// Use this when you train on random parts of the text, and choose the number of rows per
    /// epoch.
    ///
    /// # Panics
    ///
    /// Panics if `length` is 0.
    #[must_use]
    #[track_caller]
    pub fn windows(&self, length: usize, rows: usize) -> TokenRows {
        assert!(length > 0, "`.windows(0, {rows})`: expected a length of at least 1");
        TokenRows { tokens: Arc::clone(&self.0), length, rows, is_random: true }
    }
}

/// Rows of tokens of a [`TokenFile`]: see [`TokenFile::sequence`] and [`TokenFile::windows`].
///
/// ```
/// use trainer::data::{Sequences, TokenFile};
/// use trainer::prelude::*;
///
/// # let path = std::env::temp_dir().join(format!("trainer-token-rows-{}.bin", std::process::id()));
/// # std::fs::write(&path, (0..1000_u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>())?;
/// let rows = TokenFile::u16(&path)?.sequence(64);
/// assert_eq!(rows.len(), 15);
/// let mut train = DataLoader::new(rows).batch_size(5);
/// let batch: Sequences = train.batches(0, 0)?.next().expect("there is a batch")?;
/// # std::fs::remove_file(path)?;
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TokenRows {
    tokens: Arc<Tokens>,
    length: usize,
    rows: usize,
    is_random: bool,
}

impl Dataset for TokenRows {
    type Row = Sequence;

    fn len(&self) -> usize {
        self.rows
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<Sequence> {
        self.check()?;
        let Tokens { path, file, kind, start, count } = &*self.tokens;
        // Reads one token more than the row has: the target of its last token.
        let first = if self.is_random { rng.gen_range(0..count - self.length) } else { index * self.length };
        let mut bytes = vec![0; (self.length + 1) * kind.bytes()];
        read_at(path, file, start + (first * kind.bytes()) as u64, &mut bytes)?;
        let mut tokens = kind.decode(&bytes);
        let targets = tokens[1..].to_vec();
        tokens.truncate(self.length);
        Sequence::with_targets(tokens, targets)
    }

    fn fingerprint(&self) -> String {
        let Tokens { path, kind, count, .. } = &*self.tokens;
        let kind = format!("{kind:?}").to_lowercase();
        let rows = if self.is_random { "random windows" } else { "rows" };
        let rows = format!("{rows} of {} tokens from {count} of type {kind}", self.length);
        with_files(&rows, [path.as_path()].into_iter())
    }

    fn check(&self) -> Result<()> {
        let Tokens { path, count, .. } = &*self.tokens;
        if *count > self.length {
            return Ok(());
        }
        let text = format!(
            "it has {count} tokens: expected more than the {} of a row, because a row also needs the token that follows it as a target",
            self.length
        );
        Err(in_file(path, text))
    }

    fn row_name(&self, index: usize) -> String {
        format!("row {index} of {}", self.tokens.path.display())
    }
}
