//! The handwritten digits that ship with this package: 1,797 images of 8×8 pixels.
//!
//! Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning
//! Repository, CC BY 4.0; its test set, as scikit-learn ships it.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use tch::{Kind, Tensor};
use trainer::{Error, Result};

static EMBEDDED: &[u8] = include_bytes!("../data/digits.csv.gz");

/// Images and labels.
#[derive(Debug)]
pub struct Digits {
    /// Pixels from 0 to 1: `[rows, 64]`, float.
    pub images: Tensor,
    /// Digits from 0 to 9: `[rows]`, int64.
    pub labels: Tensor,
}

impl Digits {
    /// Reads the embedded data. Returns the training set and the validation set. The validation set
    /// consists of every fifth image.
    ///
    /// # Errors
    ///
    /// Returns an error if the data is corrupted.
    pub fn load() -> Result<(Digits, Digits)> {
        let (images, labels) = parse(EMBEDDED)?;
        let rows = i64::try_from(labels.len()).unwrap_or(0);
        let images = Tensor::from_slice(&images).view([rows, 64]) / 16.0;
        let labels = Tensor::from_slice(&labels);
        let held_out = Tensor::arange(rows, (Kind::Int64, tch::Device::Cpu)).remainder(5).eq(4);
        let part = |chosen: &Tensor| {
            let rows = chosen.nonzero().squeeze_dim(1);
            Digits { images: images.index_select(0, &rows), labels: labels.index_select(0, &rows) }
        };
        Ok((part(&held_out.logical_not()), part(&held_out)))
    }
}

impl Digits {
    /// Writes the images as PNG files, with one folder per digit.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written.
    pub fn write_images(&self, folder: &Path) -> Result<()> {
        for (nth, label) in Vec::<i64>::try_from(&self.labels)?.into_iter().enumerate() {
            let class = folder.join(label.to_string());
            fs::create_dir_all(&class)?;
            let image = (self.images.get(nth as i64) * 255.0).round().to_kind(Kind::Uint8);
            tch::vision::image::save(&image.view([1, 8, 8]), class.join(format!("{nth:04}.png")))?;
        }
        Ok(())
    }
}

/// Parses gzipped CSV. Each line has 64 pixels from 0 to 16 and a label.
fn parse(gzipped: &[u8]) -> Result<(Vec<f32>, Vec<i64>)> {
    let mut text = String::new();
    GzDecoder::new(gzipped).read_to_string(&mut text).map_err(|error| {
        Error::msg(format!(
            "digits.csv.gz is corrupted or truncated ({error}): restore it with `git checkout examples/data`"
        ))
    })?;
    let mut images = Vec::new();
    let mut labels = Vec::new();
    for (nth, line) in text.lines().enumerate() {
        let numbers: Vec<u8> =
            line.split(',').map(str::parse).collect::<std::result::Result<_, _>>().map_err(|error| {
                Error::msg(format!(
                    "digits.csv.gz, line {}: {error}; restore the file with `git checkout examples/data`",
                    nth + 1
                ))
            })?;
        match numbers.split_last() {
            Some((label, pixels)) if pixels.len() == 64 && *label < 10 => {
                images.extend(pixels.iter().map(|pixel| f32::from(*pixel)));
                labels.push(i64::from(*label));
            }
            Some((label, pixels)) if pixels.len() == 64 => {
                return Err(Error::msg(format!(
                    "digits.csv.gz, line {}: expected a digit from 0 to 9, found {label}; restore the file with `git \
                     checkout examples/data`",
                    nth + 1
                )));
            }
            _ => {
                return Err(Error::msg(format!(
                    "digits.csv.gz, line {}: expected 64 pixels and a digit, found {} numbers; restore the file with \
                     `git checkout examples/data`",
                    nth + 1,
                    numbers.len()
                )));
            }
        }
    }
    Ok((images, labels))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_fifth_image_is_held_out() {
        let (train, valid) = Digits::load().unwrap();
        assert_eq!(train.images.size(), [1438, 64]);
        assert_eq!(valid.images.size(), [359, 64]);
        assert_eq!(train.labels.size()[0] + valid.labels.size()[0], 1797);
        assert_eq!(train.images.max().double_value(&[]), 1.0);
    }

    #[test]
    fn corrupted_data_is_reported_with_its_line() {
        let message = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert!(message(&EMBEDDED[..20_000]).contains("corrupted or truncated"));
        assert!(message(&gzip("1,2,3")).contains("line 1: expected 64 pixels and a digit, found 3 numbers"));
        assert!(message(&gzip("1,x")).contains("line 1: invalid digit"));
    }
}
