//! Files of tokens.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use trainer::data::{RowRng, Sequence, Sequences, TokenFile};
use trainer::prelude::*;

use super::{Text, check};
use crate::support::scratch;

fn npy(descr: &str, shape: &str, version: u8, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let length_bytes = if version == 1 { 2 } else { 4 };
    while !(6 + 2 + length_bytes + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let length = (header.len() as u32).to_le_bytes();
    [b"\x93NUMPY", &[version, 0][..], &length[..length_bytes], header.as_bytes(), data].concat()
}

type Open = fn(PathBuf) -> Result<TokenFile>;

#[test]
fn tokens_are_read_from_every_layout_of_files() {
    let folder = scratch("tokens");
    let tokens: Vec<i64> = (0..103).map(|n| n * 7 % 256).collect();
    let bytes =
        |size: usize| -> Vec<u8> { tokens.iter().flat_map(|n| n.to_le_bytes()[..size].to_vec()).collect() };
    let mut read = Vec::new();
    for (descr, size) in [("|u1", 1), ("<u2", 2), ("<u4", 4), ("<i4", 4), ("<i8", 8)] {
        for version in [1, 2, 3] {
            let path = folder.join(format!("{}-{version}.npy", &descr[1..]));
            fs::write(&path, npy(descr, "(103,)", version, &bytes(size))).unwrap();
            read.push(TokenFile::open(&path).unwrap());
        }
    }
    for (size, open) in [(1, TokenFile::u8 as Open), (2, TokenFile::u16), (4, TokenFile::u32)] {
        let path = folder.join(format!("{size}.bin"));
        fs::write(&path, bytes(size)).unwrap();
        read.push(open(path).unwrap());
    }
    // Any text, of which some looks like a format.
    let html = folder.join("page.html");
    fs::write(&html, format!("<!DOCTYPE html><html>{}</html>", "word ".repeat(2000))).unwrap();
    assert_eq!(TokenFile::u8(&html).unwrap().len(), 10_028);
    assert!(TokenFile::u16(&html).unwrap_err().to_string().contains("HTML"));
    for file in &read {
        assert_eq!(file.len(), 103);
        // 10 rows of 10 tokens: the last has token 100 as its last target.
        let mut loader = DataLoader::new(file.sequence(10)).batch_size(10);
        assert_eq!(loader.len(), Some(1));
        let batch: Sequences = loader.batches(0, 0).unwrap().next().unwrap().unwrap();
        let expected = Tensor::from_slice(&tokens);
        assert_eq!(batch.tokens.view([-1]), expected.narrow(0, 0, 100));
        assert_eq!(batch.targets.view([-1]), expected.narrow(0, 1, 100));
    }
    let file = &read[0];
    // A row needs the token after it: of 103 tokens, 102 are enough for 2 rows of 51, or one of
    // 102.
    assert_eq!([file.sequence(51).len(), file.sequence(102).len(), file.sequence(103).len()], [2, 1, 0]);
    // Random windows reach both ends.
    let mut windows = DataLoader::new(file.windows(100, 500)).shuffle(3);
    let firsts: BTreeSet<i64> = windows
        .batches(0, 0)
        .unwrap()
        .map(|batch: Result<Sequences>| batch.unwrap().tokens.int64_value(&[0, 0]))
        .collect();
    assert_eq!(firsts, BTreeSet::from([0, 7, 14]));
    let text = |sequence: Sequence, _: &mut RowRng| Ok(Text(format!("{sequence:?}")));
    assert_eq!(check(|| file.sequence(3).map(text), false).concat().len(), 34);
    let windows = check(|| file.windows(3, 40).map(text), false);
    assert!(windows.concat().into_iter().collect::<BTreeSet<_>>().len() > 20);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn damaged_token_files_are_refused_with_the_reason() {
    let folder = scratch("damaged-tokens");
    let path = folder.join("file");
    let (open, u16, u32): (Open, Open, Open) = (TokenFile::open, TokenFile::u16, TokenFile::u32);
    let whole = npy("<u2", "(3,)", 1, &[0; 6]);
    for (content, open, problem) in [
        (vec![0; 7], u16, "7 bytes, which is not a multiple of 2"),
        (whole.clone(), TokenFile::u8, "`TokenFile::open`"),
        (vec![0; 10], u32, "10 bytes, which is not a multiple of 4"),
        (whole.clone(), u16, "`TokenFile::open`"),
        (vec![0; 10], open, "`TokenFile::u16`"),
        (vec![], open, "expected a `.npy` file, but the file is an empty file"),
        (whole[..9].to_vec(), open, "header is damaged"),
        (whole[..40].to_vec(), open, "header is damaged"),
        (whole[..132].to_vec(), open, "3 tokens, but 4 bytes follow, which hold 2"),
        (whole[..133].to_vec(), open, "incomplete or damaged"),
        (npy("<u2", "(3,)", 9, &[0; 6]), open, "version 9"),
        (npy("<f4", "(3,)", 1, &[0; 12]), open, "`<f4`"),
        (npy("<u2", "(1, 3)", 1, &[0; 6]), open, "one dimension"),
    ] {
        fs::write(&path, &content).unwrap();
        let error = open(path.clone()).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains("file"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    assert!(TokenFile::u16(&path).unwrap_err().to_string().contains("file"));
    // Too few tokens for a row, also where a pass would have no rows.
    fs::write(&path, [0; 8]).unwrap();
    let file = TokenFile::u16(&path).unwrap();
    for rows in [file.sequence(4), file.windows(4, 10)] {
        let error = DataLoader::new(rows).batches(0, 0).err().unwrap().to_string();
        assert!(error.contains("has 4 tokens: expected more than the 4 of a row"), "{error}");
    }
    // A file that is shortened while it is open.
    let mut loader = DataLoader::new(file.sequence(1)).batch_size(1);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4).unwrap();
    let batches: Vec<Result<Sequences>> = loader.batches(0, 0).unwrap().collect();
    assert!(batches[0].is_ok());
    let error = batches[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("shortened while it was open") && error.contains("file"), "{error}");
    fs::remove_dir_all(folder).unwrap();
}
