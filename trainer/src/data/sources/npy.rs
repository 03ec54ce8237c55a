//! The header of numpy's `.npy` files:
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use std::fs::File;
use std::path::Path;

use super::foreign::Found;
use super::tokens::TokenType;
use crate::error::Result;
use crate::io::files::{in_file, read_at};
use crate::io::format::Format;

/// The maximum length of a header: numpy itself refuses longer ones by default.
const MAX_HEADER: u64 = 10_000;

/// The information in the header about the tokens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: TokenType,
    pub(super) count: u64,
    /// The position of the first token, in bytes.
    pub(super) start: u64,
}

pub(super) fn read_header(path: &Path, file: &File, length: u64) -> Result<Header> {
    let mut start = [0; 12];
    let known = usize::try_from(length).map_or(12, |length| length.min(12));
    read_at(path, file, 0, &mut start[..known])?;
    let found = Found::in_file(path, file, length)?;
    if found.format != Format::Npy {
        return Err(in_file(path, found.refused("a `.npy` file")));
    }
    let (text_start, text_length) = match start[6] {
        1 => (10, u64::from(u16::from_le_bytes([start[8], start[9]]))),
        2 | 3 => (12, u64::from(u32::from_le_bytes([start[8], start[9], start[10], start[11]]))),
        version => {
            return Err(in_file(
                path,
                format!("its format has version {version}: expected version 1, 2 or 3"),
            ));
        }
    };
    if text_length > MAX_HEADER || text_start + text_length > length {
        return Err(in_file(
            path,
            "its header is damaged: its recorded length exceeds the file or 10,000 bytes",
        ));
    }
    let mut text = vec![0; text_length as usize];
    read_at(path, file, text_start, &mut text)?;
    let (kind, count) = parse(&String::from_utf8_lossy(&text)).map_err(|problem| in_file(path, problem))?;
    Ok(Header { kind, count, start: text_start + text_length })
}

/// Parses the type and the number of tokens from a Python dictionary such as
/// `{'descr': '<u2', 'fortran_order': False, 'shape': (1000,), }`.
fn parse(text: &str) -> Result<(TokenType, u64), String> {
    let damaged = || format!("its header is damaged: {text:?}");
    let after = |key: &str| text.split_once(key).map(|(_, after)| after.trim_start()).ok_or_else(damaged);
    let descr = after("'descr':")?;
    let descr = descr.strip_prefix('\'').and_then(|descr| descr.split_once('\''));
    let Some((descr, _)) = descr else {
        return Err("its dtype is a record type or is damaged: expected an array of integers".to_owned());
    };
    let kind = match descr {
        "|u1" => TokenType::U8,
        "<u2" => TokenType::U16,
        "<u4" => TokenType::U32,
        "<i4" => TokenType::I32,
        "<i8" => TokenType::I64,
        other => {
            return Err(format!(
                "its elements have the type `{other}`: expected `|u1`, `<u2`, `<u4`, `<i4` or `<i8`, for example after `.astype(\"uint16\")`"
            ));
        }
    };
    let shape = after("'shape':")?.strip_prefix('(').and_then(|shape| shape.split_once(')'));
    let (shape, _) = shape.ok_or_else(damaged)?;
    let sizes: Vec<&str> = shape.split(',').map(str::trim).filter(|size| !size.is_empty()).collect();
    let [count] = sizes[..] else {
        return Err(format!(
            "its shape is ({shape}): expected one dimension, for example after `.reshape(-1)`"
        ));
    };
    Ok((kind, count.parse().map_err(|_| damaged())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed_or_refused_with_the_reason() {
        let header = |descr, shape| {
            parse(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"))
        };
        assert_eq!(header("'|u1'", "(9,)"), Ok((TokenType::U8, 9)));
        assert_eq!(header("'<u2'", "(1000,)"), Ok((TokenType::U16, 1000)));
        assert_eq!(header("'<u4'", "(7,)"), Ok((TokenType::U32, 7)));
        assert_eq!(header("'<i4'", "(0,)"), Ok((TokenType::I32, 0)));
        assert_eq!(header("'<i8'", "( 12 , )"), Ok((TokenType::I64, 12)));
        for (descr, shape, problem) in [
            ("'>u2'", "(3,)", "`>u2`"),
            ("'<f4'", "(3,)", "`<f4`"),
            ("'<u2'", "(3, 4)", "(3, 4)"),
            ("'<u2'", "()", "one dimension"),
            ("'<u2'", "(x,)", "damaged"),
            ("'<u2'", "3", "damaged"),
            ("[('a', '<u2')]", "(3,)", "record type"),
        ] {
            let error = header(descr, shape).unwrap_err();
            assert!(error.contains(problem), "{descr}, {shape}: {error}");
        }
        assert!(parse("{'shape': (3,)}").unwrap_err().contains("damaged"));
    }
}
