//! [`Media`]: the texts and images that a run has recorded.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value as Json;

use crate::float::not_finite;
use crate::run::{Error, JSON_LINES_FILE, MAX_LINE_BYTES, REPORT_RECORDS_FILE};
use trainer_files::{Links, in_file, metadata, open};

/// The texts and images of a run, by name, each in the order of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Media {
    pub(super) texts: BTreeMap<String, Vec<Item<String>>>,
    pub(super) images: BTreeMap<String, Vec<Item<Png>>>,
}

/// A text or an image, and the counters of its record.
#[derive(Clone, Debug)]
pub(super) struct Item<T> {
    pub(super) optimizer_steps: u64,
    pub(super) epoch: u64,
    pub(super) content: T,
}

/// An image.
#[derive(Clone, Debug)]
pub(super) struct Png {
    pub(super) width: u64,
    /// The content of the file in base64.
    pub(super) base64: String,
}

impl Png {
    /// Parses `{"png": …, "width": …}`. Returns `None` for any other value, such as a histogram.
    fn of(value: &Json) -> Option<Self> {
        let base64 = value.get("png")?.as_str()?;
        let is_valid = base64.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        is_valid.then(|| Png {
            width: value.get("width").and_then(Json::as_u64).unwrap_or(0),
            base64: base64.to_owned(),
        })
    }
}

impl Media {
    /// Reads the records of the logger `Report`. If there are none, reads those of `JsonLines`,
    /// which contain no images.
    pub(super) fn read(folder: &Path) -> Result<Self, Error> {
        for name in [REPORT_RECORDS_FILE, JSON_LINES_FILE] {
            let path = folder.join(name);
            if metadata(&path)?.is_some_and(|found| !found.is_file() || found.len() > 0) {
                return Media::read_file(&path);
            }
        }
        Ok(Media::default())
    }

    fn read_file(path: &Path) -> Result<Self, Error> {
        let mut media = Media::default();
        let mut reader = BufReader::new(open(path, Links::Refuse)?.0);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let mut limited = reader.by_ref().take(MAX_LINE_BYTES);
            limited.read_until(b'\n', &mut line).map_err(|error| in_file(path, error))?;
            if line.last() != Some(&b'\n') {
                // The last line is not complete yet.
                return match line.len() as u64 {
                    MAX_LINE_BYTES => Err(in_file(path, format!("line {number} is too long"))),
                    _ => Ok(media),
                };
            }
            let record: serde_json::Map<String, Json> = serde_json::from_slice(&line)
                .map_err(|error| in_file(path, format!("line {number}: {error}")))?;
            media.add(record);
        }
        Ok(media)
    }

    fn add(&mut self, record: serde_json::Map<String, Json>) {
        let counter = |name| record.get(name).and_then(Json::as_u64).unwrap_or(0);
        let (optimizer_steps, epoch) = (counter("optimizer_steps"), counter("epoch"));
        // Unlike texts and images, the counters and the phase have no slash in their names.
        for (name, value) in record.into_iter().filter(|(name, _)| name.contains('/')) {
            if let Some(content) = Png::of(&value) {
                self.images.entry(name).or_default().push(Item { optimizer_steps, epoch, content });
            } else if let Json::String(content) = value
                && not_finite(&content).is_none()
            {
                self.texts.entry(name).or_default().push(Item { optimizer_steps, epoch, content });
            }
        }
    }
}

/// Encodes bytes in base64, with padding.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |nth: usize| u32::from(chunk.get(nth).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for nth in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * nth)) as usize & 63];
            text.push(if nth <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_matches_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }
}
