//! MNIST in its original format, IDX: four files in a folder, gzipped or not.
//!
//! Y. LeCun, C. Cortes and C. Burges: 60,000 handwritten digits for training and 10,000 for
//! testing, of 28×28 pixels each. A file contains a magic number and the size of each dimension, as
//! big-endian 32-bit numbers, followed by the data, one byte per value.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use tch::{Kind, Tensor};
use trainer::{Error, Result};

/// The mean of the training images' pixels, scaled to the range from 0 to 1.
const MEAN: f64 = 0.1307;
/// The standard deviation of the training images' pixels, scaled to the range from 0 to 1.
const STD: f64 = 0.3081;

/// Images and labels.
#[derive(Debug)]
pub struct Mnist {
    /// Pixels, normalized to mean 0 and standard deviation 1: `[rows, 1, 28, 28]`, float.
    pub images: Tensor,
    /// Digits from 0 to 9: `[rows]`, int64.
    pub labels: Tensor,
}

impl Mnist {
    /// Reads the training set and the test set from a folder.
    ///
    /// Each file may be gzipped, whether its name ends in `.gz` or not, and may be named
    /// `train-images-idx3-ubyte` or `train-images.idx3-ubyte`.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder or a file is missing or cannot be read, if a file is
    /// corrupted, has no rows or does not match its name, or if the numbers of images and labels
    /// differ.
    pub fn load(folder: impl AsRef<Path>) -> Result<(Mnist, Mnist)> {
        let folder = folder.as_ref();
        if !folder.is_dir() {
            return Err(Error::msg(format!(
                "the folder {} does not exist: run `make mnist` to fetch the data, or pass a folder with the data, \
                 `make mnist MNIST=path/to/folder`",
                folder.display()
            )));
        }
        Ok((Mnist::part(folder, "train")?, Mnist::part(folder, "t10k")?))
    }

    /// Reads the images and labels of `train` or `t10k`.
    fn part(folder: &Path, part: &str) -> Result<Mnist> {
        let images = Idx::read(folder, part, "images", &[28, 28])?;
        let labels = Idx::read(folder, part, "labels", &[])?;
        if images.rows != labels.rows {
            let expected =
                format!("expected {} labels, one for each image in {}", images.rows, images.path.display());
            return Err(wrong(&labels.path, &format!("{expected}, found {}", labels.rows)));
        }
        if let Some(nth) = labels.data.iter().position(|label| *label > 9) {
            let found = labels.data[nth];
            return Err(wrong(
                &labels.path,
                &format!("expected labels from 0 to 9, found {found} in row {nth}"),
            ));
        }
        let pixels = Tensor::from_slice(&images.data).view([-1, 1, 28, 28]).to_kind(Kind::Float) / 255.0;
        let labels = Tensor::from_slice(&labels.data).to_kind(Kind::Int64);
        Ok(Mnist { images: (pixels - MEAN) / STD, labels })
    }
}

/// One file: its path, its number of rows, and the bytes of the rows.
struct Idx {
    path: PathBuf,
    rows: u32,
    data: Vec<u8>,
}

impl Idx {
    /// Reads one file, such as `train-images-idx3-ubyte`, whose rows must have this shape.
    fn read(folder: &Path, part: &str, what: &str, shape: &[u32]) -> Result<Idx> {
        let name = |mark| format!("{part}-{what}{mark}idx{}-ubyte", 1 + shape.len());
        let names = [name("-"), name(".")];
        let mut files =
            names.iter().flat_map(|name| ["", ".gz"].map(|gz| folder.join(format!("{name}{gz}"))));
        let Some(path) = files.find(|path| path.is_file()) else {
            let [one, other] = names;
            return Err(wrong(folder, &format!("expected a file {one} or {other}, with or without .gz")));
        };
        match decompressed(&path).and_then(|bytes| parse(bytes, what, shape)) {
            Ok((rows, data)) => Ok(Idx { path, rows, data }),
            Err(problem) => Err(wrong(&path, &problem)),
        }
    }
}

/// Returns the bytes of a file, decompressed if they are gzipped, regardless of its name.
fn decompressed(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read it ({error})"))?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut decompressed = Vec::new();
    match MultiGzDecoder::new(&bytes[..]).read_to_end(&mut decompressed) {
        Ok(_) => Ok(decompressed),
        Err(error) => Err(format!("its gzip data is corrupted or truncated ({error})")),
    }
}

/// Returns the number of rows, and their bytes. Returns an error if the header declares no rows, or
/// does not match this shape or the length of the file.
fn parse(mut bytes: Vec<u8>, what: &str, shape: &[u32]) -> Result<(u32, Vec<u8>), String> {
    let header = 4 * (2 + shape.len());
    let numbers = bytes.get(..header).ok_or_else(|| {
        format!("expected a header of {header} bytes, found a file of {} bytes", bytes.len())
    })?;
    let mut numbers =
        numbers.chunks_exact(4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    // The third byte is the type, 8 for unsigned bytes; the fourth is the number of dimensions.
    let magic = numbers.next().unwrap_or(0);
    let expected = 0x0800 + 1 + shape.len() as u32;
    if magic != expected {
        return Err(format!("expected the magic number {expected:#010x} of {what}, found {magic:#010x}"));
    }
    let rows = numbers.next().unwrap_or(0);
    let found: Vec<u32> = numbers.collect();
    if found != shape {
        return Err(format!("expected {what} of the size {shape:?}, found {found:?}"));
    }
    let announced = header as u64 + u64::from(rows) * shape.iter().copied().map(u64::from).product::<u64>();
    match bytes.len() as u64 {
        _ if rows == 0 => Err(format!("expected {what}, found a header that announces none")),
        length if length == announced => Ok((rows, bytes.split_off(header))),
        length => Err(format!(
            "expected {announced} bytes, because its header announces {rows} {what}, found {length}"
        )),
    }
}

/// Returns an error about a file or folder, with advice on how to replace it.
fn wrong(path: &Path, problem: &str) -> Error {
    Error::msg(format!(
        "{}: {problem}; replace it, or, if `make mnist` fetched it, remove data/mnist and run `make mnist` again",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    const FILES: [&str; 4] = [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ];

    fn idx(numbers: &[u32], data: &[u8]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_be_bytes()).chain(data.iter().copied()).collect()
    }

    fn images(rows: usize) -> Vec<u8> {
        idx(&[0x803, rows as u32, 28, 28], &[255, 0].repeat(rows * 28 * 14))
    }

    fn labels(labels: &[u8]) -> Vec<u8> {
        idx(&[0x801, labels.len() as u32], labels)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Writes the four files of a data set with two training and two test images. `map` receives
    /// the name and the content of each file, and returns what to write, or `None` to leave the
    /// file out.
    fn folder(test: &str, map: impl Fn(&str, Vec<u8>) -> Option<(String, Vec<u8>)>) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("idx-{}-{test}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in FILES.into_iter().zip([images(2), labels(&[7, 9]), images(2), labels(&[0, 1])]) {
            if let Some((name, bytes)) = map(name, bytes) {
                fs::write(folder.join(name), bytes).unwrap();
            }
        }
        folder
    }

    #[test]
    fn all_name_variants_are_read_with_and_without_gzip() {
        type Spell = fn(&str, Vec<u8>) -> (String, Vec<u8>);
        let spellings: [(&str, Spell); 5] = [
            ("plain", |name, bytes| (name.to_owned(), bytes)),
            ("with a dot", |name, bytes| (name.replace("-idx", ".idx"), bytes)),
            ("gzipped", |name, bytes| (format!("{name}.gz").replace("-idx", ".idx"), gzip(&bytes))),
            ("gz in the name only", |name, bytes| (format!("{name}.gz"), bytes)),
            ("gz in the content only", |name, bytes| (name.to_owned(), gzip(&bytes))),
        ];
        for (case, spell) in spellings {
            let folder = folder(case, |name, bytes| Some(spell(name, bytes)));
            let (train, test) = Mnist::load(&folder).unwrap();
            fs::remove_dir_all(folder).unwrap();
            assert_eq!(
                (train.images.size(), train.images.kind()),
                (vec![2, 1, 28, 28], Kind::Float),
                "{case}"
            );
            assert!((train.images.double_value(&[1, 0, 3, 0]) - (1.0 - MEAN) / STD).abs() < 1e-6, "{case}");
            assert!((test.images.double_value(&[0, 0, 3, 1]) + MEAN / STD).abs() < 1e-6, "{case}");
            assert_eq!(Vec::<i64>::try_from(&train.labels).unwrap(), [7, 9], "{case}");
            assert_eq!(Vec::<i64>::try_from(&test.labels).unwrap(), [0, 1], "{case}");
        }
    }

    #[test]
    fn bad_files_are_reported_with_their_path() {
        let [train_images, train_labels, test_images, test_labels] = FILES;
        let flipped = |mut bytes: Vec<u8>| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
            bytes
        };
        let cases: [(&str, Option<Vec<u8>>, &str); 16] = [
            (
                train_images,
                None,
                "expected a file train-images-idx3-ubyte or train-images.idx3-ubyte, with or without .gz",
            ),
            (test_labels, None, "expected a file t10k-labels-idx1-ubyte"),
            (train_images, Some(vec![]), "expected a header of 16 bytes, found a file of 0 bytes"),
            (test_labels, Some(labels(&[])[..7].to_vec()), "expected a header of 8 bytes, found a file of 7"),
            (
                train_images,
                Some(labels(&[7; 9])),
                "expected the magic number 0x00000803 of images, found 0x00000801",
            ),
            (
                train_labels,
                Some(images(1)),
                "expected the magic number 0x00000801 of labels, found 0x00000803",
            ),
            (test_images, Some(idx(&[0x803, 1, 28, 27], &[0; 756])), "of the size [28, 28], found [28, 27]"),
            (test_images, Some(images(0)), "expected images, found a header that announces none"),
            (
                train_images,
                Some(images(2)[..900].to_vec()),
                "expected 1584 bytes, because its header announces 2 images, found 900",
            ),
            (
                train_images,
                Some([images(2), vec![0]].concat()),
                "expected 1584 bytes, because its header announces 2 images, found 1585",
            ),
            (train_images, Some(idx(&[0x803, u32::MAX, 28, 28], &[0; 9])), "expected 3367254359296 bytes"),
            (train_labels, Some(labels(&[1, 2, 3])), "expected 2 labels, one for each image in "),
            (test_labels, Some(labels(&[3, 10])), "expected labels from 0 to 9, found 10 in row 1"),
            (train_images, Some(gzip(&images(2))[..30].to_vec()), "its gzip data is corrupted or truncated"),
            (train_labels, Some(flipped(gzip(&labels(&[7, 9])))), "its gzip data is corrupted or truncated"),
            (
                train_labels,
                Some([gzip(&labels(&[7, 9])), vec![0]].concat()),
                "its gzip data is corrupted or truncated",
            ),
        ];
        for (nth, (bad, content, expected)) in cases.into_iter().enumerate() {
            let folder = folder(&format!("bad-{nth}"), |name, bytes| {
                let bytes = if name == bad { content.clone()? } else { bytes };
                Some((name.to_owned(), bytes))
            });
            let message = Mnist::load(&folder).unwrap_err().to_string();
            fs::remove_dir_all(folder).unwrap();
            assert!(message.contains(expected), "expected: {expected}\nfound: {message}");
            assert!(
                message.contains(bad) && message.contains("; replace it, or, if `make mnist` fetched it"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_missing_folder_is_reported() {
        let message = Mnist::load("no/such/folder").unwrap_err().to_string();
        assert!(message.contains("the folder no/such/folder does not exist: run `make mnist`"), "{message}");
    }
}
