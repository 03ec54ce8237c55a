//! Data sets of files: the same rows for any number of workers and ranks, and from any batch on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ::parquet::column::writer::ColumnWriter;
use ::parquet::data_type::ByteArray;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use trainer::data::rand::Rng;
use trainer::data::{
    Collate, IGNORED, Mixture, Parquet, RowRng, Sample, Sequence, Sequences, Shards, TokenFile, decode_image,
};
use trainer::distributed::Share;
use trainer::hooks::Checkpoint;
use trainer::prelude::*;

use crate::support::{Random, exact_state, scratch};

/// A row that is shown whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(pub(crate) String);

impl Collate for Text {
    type Batch = Vec<String>;

    fn collate(rows: Vec<Self>) -> Result<Vec<String>> {
        Ok(rows.into_iter().map(|row| row.0).collect())
    }
}

/// Checks that the batches do not depend on the number of workers and of ranks and on the batch
/// that a pass starts with, and returns those of an epoch.
pub(crate) fn check<D>(make: impl Fn() -> D, skip_damaged: bool) -> Vec<Vec<String>>
where
    D: Dataset<Row = Text>,
{
    const BATCH: usize = 7;
    let loader = || DataLoader::new(make()).batch_size(BATCH).shuffle(5).skip_damaged(skip_damaged);
    let pass = |mut loader: DataLoader<D>, start| -> Vec<Vec<String>> {
        loader.batches(1, start).unwrap().map(Result::unwrap).collect()
    };
    let all = pass(loader(), 0);
    for workers in [1, 2, 3] {
        assert_eq!(pass(loader().workers(workers), 0), all, "{workers} workers");
    }
    for start in 0..=all.len() {
        let mut loader = loader().workers(start % 3);
        // With damaged rows, the number of a batch is not its position.
        if skip_damaged && start > 0 {
            let notes = loader.notes().unwrap();
            loader.batches(1, 0).unwrap().take(start).for_each(drop);
            let position = notes.position(start as u64).unwrap();
            loader.seek(1, start as u64, &position).unwrap();
        }
        assert_eq!(pass(loader, start as u64), all[start..], "from batch {start}");
    }
    for of in [1, 2, 3, 5] {
        let ranks = (0..of).map(|rank| {
            let mut loader = loader().workers(rank as usize % 3);
            loader.share(Share { rank, of }).unwrap();
            let notes = loader.notes();
            let is_borrowed = |nth: usize| notes.as_ref().is_some_and(|notes| notes.is_borrowed(nth as u64));
            let batches: Vec<Vec<String>> = loader.batches(1, 0).unwrap().map(Result::unwrap).collect();
            assert_eq!(batches.len(), all.len(), "rank {rank} of {of}");
            let own = batches.into_iter().enumerate();
            own.map(|(nth, batch)| if is_borrowed(nth) { Vec::new() } else { batch }).collect::<Vec<_>>()
        });
        let ranks: Vec<Vec<Vec<String>>> = ranks.collect();
        for (nth, batch) in all.iter().enumerate() {
            let together: Vec<String> = ranks.iter().flat_map(|rank| rank[nth].clone()).collect();
            assert_eq!(together, *batch, "batch {nth} on {of} ranks");
        }
    }
    all
}

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

#[test]
fn tokens_are_read_from_every_layout_of_files() {
    let folder = scratch("tokens");
    let tokens: Vec<i64> = (0..103).map(|n| n * 7 % 65_536).collect();
    let path = folder.join("tokens");
    let bytes =
        |size: usize| -> Vec<u8> { tokens.iter().flat_map(|n| n.to_le_bytes()[..size].to_vec()).collect() };
    let mut read = Vec::new();
    for (descr, size) in [("<u2", 2), ("<u4", 4), ("<i4", 4), ("<i8", 8)] {
        for version in [1, 2, 3] {
            fs::write(&path, npy(descr, "(103,)", version, &bytes(size))).unwrap();
            read.push(TokenFile::open(&path).unwrap());
        }
    }
    for (size, open) in [(2, TokenFile::u16 as fn(PathBuf) -> Result<TokenFile>), (4, TokenFile::u32)] {
        let path = folder.join(format!("{size}.bin"));
        fs::write(&path, bytes(size)).unwrap();
        read.push(open(path).unwrap());
    }
    for file in &read[12..] {
        assert_eq!(file.len(), 103);
        // 10 rows of 10 tokens: the last has token 100 as its last target.
        let mut loader = DataLoader::new(file.sequence(10)).batch_size(10);
        assert_eq!(loader.len(), Some(1));
        let batch: Sequences = loader.batches(0, 0).unwrap().next().unwrap().unwrap();
        let expected = Tensor::from_slice(&tokens);
        assert_eq!(batch.tokens.view([-1]), expected.narrow(0, 0, 100));
        assert_eq!(batch.targets.view([-1]), expected.narrow(0, 1, 100));
    }
    let file = &read[12];
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
    type Open = fn(PathBuf) -> Result<TokenFile>;
    let (open, u16, u32): (Open, Open, Open) = (TokenFile::open, TokenFile::u16, TokenFile::u32);
    let whole = npy("<u2", "(3,)", 1, &[0; 6]);
    for (content, open, problem) in [
        (vec![0; 7], u16, "7 bytes, which is not a multiple of 2"),
        (vec![0; 10], u32, "10 bytes, which is not a multiple of 4"),
        (whole.clone(), u16, "`TokenFile::open`"),
        (vec![0; 10], open, "`TokenFile::u16`"),
        (vec![], open, "not a `.npy` file"),
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

/// Writes a tar file with these files.
fn write_tar(path: &Path, files: &[(String, Vec<u8>)]) {
    let mut tar = ::tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &content[..]).unwrap();
    }
    fs::write(path, tar.into_inner().unwrap()).unwrap();
}

/// The name of a row.
fn named(shard: usize, row: usize) -> String {
    format!("{shard:04}-{row}")
}

/// The number of rows of a shard: they differ.
fn rows_in(shard: usize) -> usize {
    [3, 1, 4, 0, 5][shard % 5]
}

fn tar_shards(folder: &Path, shards: usize) {
    for shard in 0..shards {
        let files = (0..rows_in(shard)).flat_map(|row| {
            let name = named(shard, row);
            [
                (format!("{name}.txt"), name.clone().into_bytes()),
                (format!("{name}.Note.CLS"), vec![b'7'; row]),
            ]
        });
        write_tar(&folder.join(format!("{shard:04}.tar")), &files.collect::<Vec<_>>());
    }
}

#[allow(clippy::needless_pass_by_value)] // as a closure of `Dataset::map`
fn text_of_sample(sample: Sample, _: &mut RowRng) -> Result<Text> {
    assert_eq!(sample.part("note.cls")?.len().to_string(), sample.key()[5..]);
    Ok(Text(sample.text("txt")?.to_owned()))
}

/// Writes a parquet file with row groups of these texts.
fn write_parquet(path: &Path, groups: &[Vec<String>]) {
    let schema = "message rows { required int64 number; required binary text (UTF8); optional binary raw; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(::parquet::basic::Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .build();
    let mut writer =
        SerializedFileWriter::new(fs::File::create(path).unwrap(), schema, Arc::new(properties)).unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let texts: Vec<ByteArray> = rows.iter().map(|row| row.as_str().into()).collect();
        let numbers: Vec<i64> = (0..rows.len() as i64).collect();
        while let Some(mut column) = group.next_column().unwrap() {
            match column.untyped() {
                ColumnWriter::Int64ColumnWriter(writer) => writer.write_batch(&numbers, None, None).unwrap(),
                ColumnWriter::ByteArrayColumnWriter(writer) if writer.get_descriptor().name() == "text" => {
                    writer.write_batch(&texts, None, None).unwrap()
                }
                ColumnWriter::ByteArrayColumnWriter(writer) => {
                    // Null in every second row.
                    let levels: Vec<i16> = (0..rows.len() as i16).map(|row| row % 2).collect();
                    let values: Vec<ByteArray> = vec![vec![1, 2].into(); rows.len() / 2];
                    writer.write_batch(&values, Some(&levels), None).unwrap()
                }
                _ => unreachable!(),
            };
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[derive(Clone, serde::Deserialize)]
struct TextRow {
    text: String,
}

fn parquet_shards(folder: &Path, shards: usize) {
    for shard in 0..shards {
        let rows: Vec<String> = (0..rows_in(shard)).map(|row| named(shard, row)).collect();
        let groups: Vec<Vec<String>> = rows.chunks(2).map(<[String]>::to_vec).collect();
        write_parquet(&folder.join(format!("{shard:04}.parquet")), &groups);
    }
}

fn texts_of_parquet(folder: &Path, buffer: usize) -> impl Dataset<Row = Text> {
    let shards: Shards<Parquet<TextRow>> = Shards::parquet([folder]).unwrap();
    shards.buffer(buffer).map(|row, _| Ok(Text(row.text)))
}

/// All rows of shards.
fn all_rows(shards: usize) -> Vec<String> {
    (0..shards).flat_map(|shard| (0..rows_in(shard)).map(move |row| named(shard, row))).collect()
}

#[test]
fn shards_are_shuffled_first_and_then_rows_within_a_buffer() {
    let folder = scratch("shards");
    tar_shards(&folder, 23);
    parquet_shards(&folder, 23);
    let tar = |buffer| Shards::tar([&folder]).unwrap().buffer(buffer).map(text_of_sample);
    for buffer in [1, 10, 1000] {
        let of_tar = check(|| tar(buffer), false);
        let of_parquet = check(|| texts_of_parquet(&folder, buffer), false);
        assert_eq!(of_tar, of_parquet);
        let mut rows = of_tar.concat();
        let of_shard: Vec<&str> = rows.iter().map(|row| &row[..4]).collect();
        let changes = of_shard.windows(2).filter(|pair| pair[0] != pair[1]).count();
        if buffer == 1 {
            // Each shard is read from its start to its end, one shard after the other in random
            // order.
            assert_eq!(changes + 1, (0..23).filter(|shard| rows_in(*shard) > 0).count());
            assert!(!of_shard.is_sorted());
        } else {
            assert!(changes > 30, "{changes}");
            for rows in of_shard.chunks(buffer) {
                let shards: BTreeSet<&str> = rows.iter().copied().collect();
                assert!(buffer > 10 || shards.len() <= 8, "{rows:?}");
            }
        }
        rows.sort();
        assert_eq!(rows, all_rows(23), "each row once");
    }
    // Without shuffling, the rows are in the order of the files.
    let mut in_order = DataLoader::new(tar(10)).batch_size(100);
    let batch: Vec<String> = in_order.batches(0, 0).unwrap().next().unwrap().unwrap();
    assert_eq!(batch, all_rows(23));
    // Subsets keep the order in which shards are read.
    let train = || {
        let [train, _] = tar(1).random_split(1, [0.7, 0.3]);
        train
    };
    let of_train = check(train, false).concat();
    let of_all = check(|| tar(1), false).concat();
    let kept: Vec<String> = of_all.into_iter().filter(|row| of_train.contains(row)).collect();
    assert_eq!(of_train, kept);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn three_damaged_shards_of_a_thousand_are_named_and_nothing_else_is_lost() {
    let folder = scratch("thousand");
    tar_shards(&folder, 1000);
    parquet_shards(&folder, 1000);
    let file = |shard: usize, extension: &str| folder.join(format!("{shard:04}.{extension}"));
    let cut = |path: &Path, length: usize| fs::write(path, &fs::read(path).unwrap()[..length]).unwrap();
    let flip = |path: &Path, at: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] ^= 0xff;
        fs::write(path, bytes).unwrap();
    };
    // A tar file has blocks of 512 bytes: a header and a block of content for each file, two at the
    // end.
    cut(&file(104, "tar"), 4 * 1024 + 100); // within the third of 5 samples
    cut(&file(502, "tar"), 700); // within the first sample
    flip(&file(907, "tar"), 3 * 512); // the header of the second of 4 samples
    // A parquet file begins with the first page of the first column that is read.
    cut(&file(104, "parquet"), 200);
    // A footer ends with its length in 4 bytes, and 4 bytes that every parquet file ends with.
    let whole = fs::read(file(502, "parquet")).unwrap();
    let (before, length) = (&whole[..whole.len() - 8], &whole[whole.len() - 8..][..4]);
    flip(&file(502, "parquet"), before.len() - u32::from_le_bytes(length.try_into().unwrap()) as usize);
    let text_page = fs::read(file(907, "parquet")).unwrap();
    let at = text_page.windows(6).position(|bytes| bytes == b"0907-0").unwrap();
    flip(&file(907, "parquet"), at + 1);

    let lost_of_tar = [named(104, 2), named(104, 3), named(104, 4)];
    let lost_of_tar = [&lost_of_tar[..], &(0..4).map(|row| named(502, row)).collect::<Vec<_>>()].concat();
    let lost_of_tar = [&lost_of_tar[..], &(0..4).map(|row| named(907, row)).collect::<Vec<_>>()].concat();
    let tar = || Shards::tar([&folder]).unwrap().buffer(100).map(text_of_sample);
    let lost_of_parquet = (0..5).map(|row| named(104, row)).chain((0..4).map(|row| named(502, row)));
    let lost_of_parquet: Vec<String> = lost_of_parquet.chain([named(907, 0), named(907, 1)]).collect();
    let parquet = || texts_of_parquet(&folder, 100);

    // Without `skip_damaged`, a pass over shards that cannot be opened does not begin.
    let error = DataLoader::new(tar()).batches(0, 0).err().unwrap().to_string();
    assert!(error.contains("3 of 1000 shards are damaged"), "{error}");
    for shard in ["0104.tar", "0502.tar", "0907.tar"] {
        assert!(error.contains(shard), "{error}");
    }
    assert!(
        error.contains("only its first 2 samples can be read: the file is truncated at byte 4196"),
        "{error}"
    );
    let error = DataLoader::new(parquet()).batches(0, 0).err().unwrap().to_string();
    assert!(error.contains("2 of 1000 shards are damaged"), "{error}");
    assert!(error.contains("0104.parquet") && error.contains("0502.parquet"), "{error}");

    fn without_lost<D: Dataset<Row = Text>>(make: impl Fn() -> D, lost: &[String], names: &[&str]) {
        let mut loader = DataLoader::new(make()).batch_size(50).shuffle(9).workers(2).skip_damaged(true);
        let notes = loader.notes().unwrap();
        let batches: Vec<Vec<String>> = loader.batches(0, 0).unwrap().map(Result::unwrap).collect();
        let mut rows = batches.concat();
        rows.sort();
        let expected: Vec<String> = all_rows(1000).into_iter().filter(|row| !lost.contains(row)).collect();
        assert_eq!(rows, expected);
        let mut warnings = notes.take_warnings();
        warnings.sort_by_key(|warning| warning[warning.find("/0").unwrap()..].to_owned());
        assert_eq!(warnings.len(), names.len(), "{warnings:#?}");
        for (warning, name) in warnings.iter().zip(names) {
            assert!(
                warning.starts_with("skipped a damaged row: ") && warning.contains(name),
                "{warning}: {name}"
            );
        }
    }
    // One sample before the damage may be incomplete, and is left out, too.
    without_lost(
        tar,
        &lost_of_tar,
        &["0104.tar: only its first 2", "0502.tar: only its first 0", "0907.tar: only its first 0"],
    );
    let names =
        ["0104.parquet: none", "0502.parquet: none", "0907.parquet: row 0: ", "0907.parquet: row 1: "];
    without_lost(parquet, &lost_of_parquet, &names);
    check(
        || Shards::tar((100..110).map(|shard| file(shard, "tar"))).unwrap().buffer(9).map(text_of_sample),
        true,
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn tar_files_without_valid_samples_are_refused_with_the_reason() {
    let folder = scratch("other-tars");
    let path = folder.join("a.tar");
    let error = Shards::tar([&folder]).unwrap_err().to_string();
    assert!(error.contains("no files with the extension `.tar`"), "{error}");
    assert!(Shards::tar([&path]).unwrap_err().to_string().contains("a.tar"));
    assert!(Shards::tar([""; 0]).unwrap_err().to_string().contains("no shards"));
    let damage = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        Shards::tar([&path]).unwrap().check().unwrap_err().to_string()
    };
    assert!(damage(&[0x1f; 0]).contains("without the end-of-archive marker"));
    let gzip = [&[0x1f, 0x8b][..], &[7; 600]].concat();
    assert!(damage(&gzip).contains("it is compressed: decompress it"));
    write_tar(&path, &[("a.txt".to_owned(), vec![1]), ("a.txt".to_owned(), vec![2])]);
    let shards = Shards::tar([&path]).unwrap().map(text_of_sample);
    let error = DataLoader::new(shards).batches(0, 0).unwrap().next().unwrap().err().unwrap().to_string();
    assert!(error.contains("a.tar: row 0: the sample `a` has two files with the extension `txt`"), "{error}");
    // A closure that cannot decode a sample does not know where it comes from.
    let long = format!("{}/b", "long".repeat(60));
    write_tar(&path, &[("a.txt".to_owned(), vec![1]), (format!("{long}.jpg"), vec![2])]);
    let images = Shards::tar([&path]).unwrap().map(|sample, _| decode_image(sample.part("jpg")?));
    let mut loader = DataLoader::new(images);
    let errors: Vec<String> =
        loader.batches(0, 0).unwrap().map(|batch| batch.unwrap_err().to_string()).collect();
    assert!(
        errors[0].starts_with("row 0 of ") && errors[0].contains("`a` has no part `jpg`: it has `txt`"),
        "{errors:?}"
    );
    assert!(errors[1].contains("row 1 of ") && errors[1].contains("not an image"), "{errors:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn parquet_columns_are_read_into_the_fields_of_a_row() {
    #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
    struct Row {
        raw: Option<Vec<u8>>,
        number: u16,
        text: String,
    }
    #[derive(Clone, Debug, serde::Deserialize)]
    struct Other {
        #[allow(dead_code)]
        label: i64,
    }
    #[derive(Clone, Debug, serde::Deserialize)]
    struct Wrong {
        #[allow(dead_code)]
        text: i64,
    }
    let folder = scratch("columns");
    let path = folder.join("rows.parquet");
    write_parquet(&path, &[vec!["a".to_owned(), "b".to_owned()], vec!["c".to_owned()]]);
    let rows: Shards<Parquet<Row>> = Shards::parquet([&path]).unwrap();
    let rows_of = rows.map(|row, _| Ok(Text(format!("{row:?}"))));
    let batch: Vec<String> =
        DataLoader::new(rows_of).batch_size(3).batches(0, 0).unwrap().next().unwrap().unwrap();
    let expected = [(None, 0, "a"), (Some(vec![1, 2]), 1, "b"), (None, 0, "c")];
    let expected =
        expected.map(|(raw, number, text)| format!("{:?}", Row { raw, number, text: text.to_owned() }));
    assert_eq!(batch, expected);
    let error = |result: Option<Result<Vec<String>>>| result.unwrap().unwrap_err().to_string();
    let other: Shards<Parquet<Other>> = Shards::parquet([&path]).unwrap();
    let mut other = DataLoader::new(other.map(|row, _| Ok(Text(format!("{row:?}")))));
    let text = error(other.batches(0, 2).unwrap().next());
    assert!(
        text.contains(
            "rows.parquet: row 2: missing field `label`; the file has the columns number, text, raw"
        ),
        "{text}"
    );
    let wrong: Shards<Parquet<Wrong>> = Shards::parquet([&path]).unwrap();
    let mut wrong = DataLoader::new(wrong.map(|row, _| Ok(Text(format!("{row:?}")))));
    let text = error(wrong.batches(0, 1).unwrap().next());
    assert!(text.contains("row 1: column `text`: invalid type: string \"b\", expected i64"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

/// Returns shards of both formats and tokens, mixed by weights that change, and augmented.
fn streamed_and_mixed(folder: &Path) -> Mixture<Sequence> {
    let sequence = |text: &str| Sequence::new(text.bytes().map(i64::from).collect());
    let samples = Shards::tar([folder]).unwrap().buffer(20).map(move |sample, rng: &mut RowRng| {
        let length = rng.gen_range(2..6);
        Ok(sequence(&sample.text("txt")?[..length]))
    });
    let documents: Shards<Parquet<TextRow>> = Shards::parquet([folder]).unwrap();
    let documents = documents.buffer(30).map(move |row, _| Ok(sequence(&row.text)));
    let tokens = TokenFile::u16(folder.join("tokens.bin")).unwrap().windows(9, 50);
    Mixture::new()
        .add(samples, 2.0)
        .add_with(documents, |rows| 1.0 + rows as f64 / 500.0)
        .add(tokens, 1.0)
        .rows_per_epoch(2000)
}

/// Returns everything that a batch has, row by row.
fn rows_of(batch: Result<Sequences>) -> Vec<String> {
    let Sequences { tokens, targets, positions, segments } = batch.unwrap();
    let row = |nth| {
        let parts = [&tokens, &targets, &positions, &segments]
            .map(|part| Vec::<i64>::try_from(part.select(0, nth)).unwrap());
        format!("{parts:?}")
    };
    (0..tokens.size()[0]).map(row).collect()
}

#[test]
fn a_streamed_mixed_and_packed_epoch_is_resumed_at_any_batch_and_divided_among_ranks() {
    let folder = scratch("streamed");
    tar_shards(&folder, 100);
    parquet_shards(&folder, 100);
    let tokens: Vec<u8> = (0..1000_u16).flat_map(u16::to_le_bytes).collect();
    fs::write(folder.join("tokens.bin"), tokens).unwrap();
    let mixture = Arc::new(streamed_and_mixed(&folder));
    let loader = |workers| {
        DataLoader::new(Arc::clone(&mixture))
            .batch_size(3)
            .shuffle(7)
            .workers(workers)
            .pack(32)
            .read_ahead(32)
    };
    let epoch = 2;
    let mut whole = loader(0);
    let notes = whole.notes().unwrap();
    let mut positions = Vec::new();
    let mut batches = Vec::new();
    for batch in whole.batches(epoch, 0).unwrap() {
        positions.push(notes.position(batches.len() as u64).unwrap());
        batches.push(rows_of(batch));
    }
    assert!(batches.len() > 100, "{}", batches.len());
    for (start, position) in positions.iter().enumerate() {
        let mut resumed = loader(start % 4);
        resumed.seek(epoch, start as u64, position).unwrap();
        let rest: Vec<_> = resumed.batches(epoch, start as u64).unwrap().take(5).map(rows_of).collect();
        assert_eq!(rest, batches[start..batches.len().min(start + 5)], "from batch {start}");
    }
    for of in [1, 2, 3, 5] {
        let ranks = (0..of).map(|rank| {
            let mut loader = loader(rank as usize % 3);
            loader.share(Share { rank, of }).unwrap();
            let notes = loader.notes().unwrap();
            let own = loader.batches(epoch, 0).unwrap().enumerate().map(|(nth, batch)| {
                let rows = rows_of(batch);
                if notes.is_borrowed(nth as u64) { Vec::new() } else { rows }
            });
            own.collect::<Vec<_>>()
        });
        let ranks: Vec<Vec<Vec<String>>> = ranks.collect();
        for (nth, batch) in batches.iter().enumerate() {
            let together: Vec<String> = ranks.iter().flat_map(|rank| rank[nth].clone()).collect();
            assert_eq!(together, *batch, "batch {nth} on {of} ranks");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

/// A model that predicts each token from the one before.
struct Bigrams {
    vars: nn::VarStore,
    embedding: nn::Embedding,
    output: nn::Linear,
}

impl Bigrams {
    const TOKENS: i64 = 1001;

    fn new() -> Self {
        tch::manual_seed(3);
        let vars = nn::VarStore::new(Device::Cpu);
        let embedding = nn::embedding(&vars.root() / "embedding", Self::TOKENS, 4, Default::default());
        let output = nn::linear(&vars.root() / "output", 4, Self::TOKENS, Default::default());
        Bigrams { vars, embedding, output }
    }
}

impl Task for Bigrams {
    type Batch = Sequences;
    type Pred = Tensor;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }
    fn pred(&mut self, batch: &Sequences, _: Mode) -> Result<Tensor> {
        Ok(batch.tokens.apply(&self.embedding).apply(&self.output).view([-1, Self::TOKENS]))
    }
    fn loss(&mut self, pred: &Tensor, batch: &Sequences) -> Result<Tensor> {
        let targets = batch.targets.view([-1]);
        Ok(pred.cross_entropy_loss::<Tensor>(&targets, None, Reduction::Mean, IGNORED, 0.0))
    }
    fn weight(&self, batch: &Sequences) -> f64 {
        batch.weight()
    }
}

/// Trains for two epochs, or until `steps` more steps were taken, and adds each batch to `seen`.
/// Returns the state at the end.
fn train(
    folder: &Path,
    mixture: &Arc<Mixture<Sequence>>,
    steps: Option<u64>,
    seen: &Arc<Mutex<BTreeMap<u64, String>>>,
) -> Option<Vec<(String, Vec<u64>)>> {
    let seen = Arc::clone(seen);
    let mut taken = 0;
    let mut trainer = Trainer::builder(Bigrams::new())
        .optimizer(AdamW::new(0.01))
        .discover(Discover::None)
        .epochs(2)
        .run_folder(folder)
        .hook(Checkpoint::in_run_folder().every(Every::Steps(7)).keep_last(1))
        .resume(Resume::Auto)
        .observe::<AfterTransfer>("see", move |cx| {
            let Sequences { tokens, targets, positions, segments } = cx.batch::<Sequences>()?;
            let parts = [tokens, targets, positions, segments]
                .map(|part| Vec::<i64>::try_from(part.view([-1])).unwrap());
            let before = seen.lock().unwrap().insert(cx.counters().batches_seen, format!("{parts:?}"));
            // A batch that was interrupted is the same when it is read again.
            assert!(before.is_none_or(|before| before == format!("{parts:?}")));
            Ok(())
        })
        .on::<BeforeStep>("interrupt", move |_| {
            taken += 1;
            if steps.is_some_and(|steps| taken > steps) { Err(Error::msg("interrupted")) } else { Ok(()) }
        })
        .build()
        .unwrap();
    let mut loader =
        DataLoader::new(Arc::clone(mixture)).batch_size(3).shuffle(7).workers(2).pack(32).read_ahead(32);
    match trainer.fit(&mut loader, None) {
        Ok(_) => Some(exact_state(&trainer)),
        Err(error) => {
            assert!(error.to_string().contains("interrupted"), "{error}");
            None
        }
    }
}

#[test]
fn a_run_interrupted_at_random_batches_sees_the_same_batches_and_ends_with_the_same_weights() {
    let folder = scratch("interrupted");
    let shards = folder.join("shards");
    fs::create_dir(&shards).unwrap();
    tar_shards(&shards, 20);
    parquet_shards(&shards, 20);
    let tokens: Vec<u8> = (0..1000_u16).flat_map(u16::to_le_bytes).collect();
    fs::write(shards.join("tokens.bin"), tokens).unwrap();
    let mixture = || Arc::new(streamed_and_mixed(&shards));
    let whole = Arc::default();
    let expected = train(&folder.join("whole"), &mixture(), None, &whole).unwrap();
    let interruptions = std::env::var("TRAINER_SOAK").map_or(6, |count| count.parse().unwrap());
    let mut random = Random(88_172_645_463_325_252);
    let mut done = 0;
    while done < interruptions {
        let seen = Arc::default();
        let run = folder.join(format!("from-{done}"));
        let end = loop {
            let steps = (done < interruptions).then(|| 1 + random.below(40) as u64);
            match train(&run, &mixture(), steps, &seen) {
                Some(end) => break end,
                None => done += 1,
            }
        };
        assert_eq!(*seen.lock().unwrap(), *whole.lock().unwrap(), "after {done} interruptions");
        assert_eq!(end, expected, "after {done} interruptions");
    }
    fs::remove_dir_all(folder).unwrap();
}
