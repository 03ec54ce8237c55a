//! What a reader of data says about a file that has another format.

use std::fs::File;
use std::path::Path;

use crate::error::Result;
use crate::io::files::read_at;
use crate::io::format::{self, Format};

/// The number of bytes that are sufficient to recognize every format.
const START: u64 = 64 * 1024;

/// The format of a file, and the bytes by which it was recognized.
pub(super) struct Found {
    pub(super) format: Format,
    start: Vec<u8>,
}

impl Found {
    pub(super) fn in_file(path: &Path, file: &File, length: u64) -> Result<Self> {
        let mut start = vec![0; length.min(START) as usize];
        read_at(path, file, 0, &mut start)?;
        Ok(Found { format: Format::of(&start), start })
    }

    #[cfg(feature = "image")]
    pub(super) fn in_bytes(bytes: &[u8]) -> Self {
        let start = bytes[..bytes.len().min(START as usize)].to_vec();
        Found { format: Format::of(&start), start }
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self.format, Format::Text | Format::Json | Format::Html | Format::Xml | Format::Svg)
    }

    /// Whether enough text was read that it cannot be raw tokens.
    pub(super) fn is_long_text(&self) -> bool {
        self.is_text() && self.start.len() >= format::TEXT
    }

    /// Returns the message that a file is not what a reader `expected`, and what to do.
    pub(super) fn refused(&self, expected: &str) -> String {
        format::unexpected(&self.start, self.format, expected, remedy)
    }
}

/// Returns how to read the data of a file, or how to convert it into a format that can be read.
fn remedy(format: Format) -> &'static str {
    match format {
        Format::Parquet => "open it with `Shards::parquet`",
        Format::Tar => "open it with `Shards::tar`",
        Format::Npy => {
            "open an array of tokens with `TokenFile::open`; for any other, pass the tensor of `Tensor::read_npy` to `InMemory`"
        }
        Format::Npz => "pass the tensors of `Tensor::read_npz` to `InMemory`",
        Format::Png | Format::Jpeg | Format::Gif | Format::WebP => {
            "open the folders of its images with `ImageFolder`, or decode it with `decode_image`"
        }
        Format::Heif | Format::Avif | Format::Svg => "convert it to PNG or JPEG",
        Format::Arrow => "convert it in Python with `pandas.read_feather(…).to_parquet(…)`, and use `Shards::parquet`",
        Format::Orc => "convert it in Python with `pandas.read_orc(…).to_parquet(…)`, and use `Shards::parquet`",
        Format::Json => {
            "convert it in Python with `pandas.read_json(…).to_parquet(…)`, with `lines=True` if each line is an object, and use \
             `Shards::parquet`"
        }
        Format::Text => "if it is a table, read it with `read_csv`; otherwise name the file with the data",
        Format::Unknown => {
            "it is damaged or of a format that cannot be read; if it has tokens without a header, open it with `TokenFile::u8`, \
             `TokenFile::u16` or `TokenFile::u32`"
        }
        _ => format.remedy().unwrap_or(
            "name the file with the data, or convert it with the program that wrote it to parquet, CSV, `.npy` or a tar archive",
        ),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::{env, fs, process};

    use super::*;
    use crate::data::TokenFile;

    type Read = fn(&Path) -> Result<()>;

    /// Each reader of data files: what it reads, its own formats, and those whose bytes can be
    /// valid or damaged content, about which it has errors of its own.
    fn readers() -> Vec<(&'static str, Vec<Format>, Read)> {
        use Format::*;
        let doubtful = vec![Npy, Empty, Unknown, Text, Utf16, Json, Html, Xml, Svg, Pickle, Safetensors];
        let doubtful = [doubtful, vec![Onnx, MessagePack, Zlib, Jpeg, Orc]].concat();
        vec![
            ("a `.npy` file", vec![Npy], |path| TokenFile::open(path).map(drop)),
            ("tokens without a header", doubtful.clone(), |path| TokenFile::u16(path).map(drop)),
            ("tokens without a header", doubtful, |path| TokenFile::u32(path).map(drop)),
            #[cfg(feature = "csv")]
            ("a CSV file", vec![Text, Unknown], |path| {
                #[derive(serde::Deserialize)]
                struct Row {
                    #[allow(dead_code)]
                    name: f32,
                }
                crate::data::read_csv::<Row>(path).map(drop)
            }),
            #[cfg(feature = "tar")]
            ("a tar archive", vec![Tar, TorchTar, Unknown], |path| checked(crate::data::Shards::tar([path]))),
            #[cfg(feature = "parquet")]
            ("a parquet file", vec![Parquet, Unknown], |path| {
                checked(crate::data::Shards::<crate::data::Parquet<f32>>::parquet([path]))
            }),
            #[cfg(feature = "image")]
            ("an image (JPEG, PNG, WebP, GIF, BMP or TIFF)", vec![Png, Jpeg, Gif, WebP], |path| {
                crate::data::decode_image(&fs::read(path)?).map(drop)
            }),
        ]
    }

    #[cfg(any(feature = "parquet", feature = "tar"))]
    fn checked(shards: Result<impl crate::data::Dataset>) -> Result<()> {
        shards?.check()
    }

    #[test]
    fn every_reader_names_the_format_of_a_file_that_it_cannot_read() {
        let path = env::temp_dir().join(format!("trainer-foreign-{}", process::id()));
        for (expected, own, read) in readers() {
            for (format, bytes) in format::examples() {
                if own.contains(&format) {
                    continue;
                }
                fs::write(&path, &bytes).unwrap();
                let error = read(&path).expect_err(&format!("{expected}: {format:?}")).to_string();
                let expected = format!("expected {expected}, but the file is {}", format.what());
                assert!(error.contains(&expected), "{expected}: {format:?}: {error}");
                let advice = [remedy(format), "open it with `TokenFile::open`"];
                assert!(advice.iter().any(|advice| error.contains(advice)), "{format:?}: {error}");
            }
        }
        // Text that is too long to be tokens.
        for text in ["Once upon a time. ", "{\"text\": 1}\n", "<html> "] {
            fs::write(&path, text.repeat(format::TEXT)).unwrap();
            let error = TokenFile::u16(&path).unwrap_err().to_string();
            assert!(error.contains("expected tokens without a header, but the file is a "), "{error}");
        }
        fs::remove_file(path).unwrap();
    }
}
