//! Shards of tar and parquet files.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use ::parquet::column::writer::ColumnWriter;
use ::parquet::data_type::ByteArray;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::parser::parse_message_type;
use trainer::data::{Parquet, RowRng, Sample, Shards, decode_image};
use trainer::prelude::*;

use super::{Text, check};
use crate::support::scratch;

/// Writes a tar file with these files.
pub(super) fn write_tar(path: &Path, files: &[(String, Vec<u8>)]) {
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
pub(super) fn named(shard: usize, row: usize) -> String {
    format!("{shard:04}-{row}")
}

/// The number of rows of a shard: they differ.
pub(super) fn rows_in(shard: usize) -> usize {
    [3, 1, 4, 0, 5][shard % 5]
}

pub(super) fn tar_shards(folder: &Path, shards: usize) {
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
pub(super) fn text_of_sample(sample: Sample, _: &mut RowRng) -> Result<Text> {
    assert_eq!(sample.part("note.cls")?.len().to_string(), sample.key()[5..]);
    Ok(Text(sample.text("txt")?.to_owned()))
}

/// Writes a parquet file with row groups of these texts.
pub(super) fn write_parquet(path: &Path, groups: &[Vec<String>]) {
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
pub(super) struct TextRow {
    pub(super) text: String,
}

pub(super) fn parquet_shards(folder: &Path, shards: usize) {
    for shard in 0..shards {
        let rows: Vec<String> = (0..rows_in(shard)).map(|row| named(shard, row)).collect();
        let groups: Vec<Vec<String>> = rows.chunks(2).map(<[String]>::to_vec).collect();
        write_parquet(&folder.join(format!("{shard:04}.parquet")), &groups);
    }
}

pub(super) fn texts_of_parquet(folder: &Path, buffer: usize) -> impl Dataset<Row = Text> {
    let shards: Shards<Parquet<TextRow>> = Shards::parquet([folder]).unwrap();
    shards.buffer(buffer).map(|row, _| Ok(Text(row.text)))
}

/// All rows of shards.
pub(super) fn all_rows(shards: usize) -> Vec<String> {
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
    assert!(error.contains("3 of 1000 shards cannot be read completely"), "{error}");
    for shard in ["0104.tar", "0502.tar", "0907.tar"] {
        assert!(error.contains(shard), "{error}");
    }
    assert!(
        error.contains("only its first 2 samples can be read: the file is truncated at byte 4196"),
        "{error}"
    );
    let error = DataLoader::new(parquet()).batches(0, 0).err().unwrap().to_string();
    assert!(error.contains("2 of 1000 shards cannot be read completely"), "{error}");
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
    write_tar(&path, &[("a.txt".to_owned(), vec![1])]);
    let whole = fs::read(&path).unwrap();
    assert!(damage(&whole[..1024]).contains("without the end-of-archive marker"));
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";
    assert!(
        damage(gzip)
            .contains("a.tar: expected a tar archive, but the file is compressed with gzip: decompress it")
    );
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
    assert!(errors[1].contains("row 1 of ") && errors[1].contains("expected an image"), "{errors:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn parquet_files_that_the_library_refuses_are_reported_with_the_reason_and_the_remedy() {
    let folder = scratch("refused-parquet");
    let path = folder.join("rows.parquet");
    write_parquet(&path, &[vec!["a".to_owned(), "b".to_owned()]]);
    let whole = fs::read(&path).unwrap();
    let replaced = |before: &[u8], after: &[u8]| {
        let mut bytes = whole.clone();
        let at = bytes.windows(before.len()).rposition(|bytes| bytes == before).unwrap();
        bytes.splice(at..at + before.len(), after.iter().copied());
        bytes
    };
    let again = "write it again with `pyarrow.parquet.write_table(pyarrow.parquet.read_table(…), …)`";
    for (bytes, reason, remedy) in [
        // The type of a column of nulls, as the first versions of pyarrow wrote it.
        (
            replaced(b"text\x25\0", b"text\x25\x30"),
            "its footer is not supported, or is damaged (Unexpected ConvertedType 24)",
            again,
        ),
        // Another codec, and another position of the first page.
        (
            replaced(b"\x04text\x15\x02", b"\x04text\x15\x08"),
            "row 0: its pages are compressed with brotli, which is not supported",
            again,
        ),
        (
            replaced(b"\x04text\x15\x02", b"\x04text\x15\0"),
            "row 0: its pages are not supported, or are damaged (",
            again,
        ),
        (
            whole[..whole.len() - 1].to_vec(),
            "because it has no footer at its end",
            "copy or download it again",
        ),
        (replaced(b"PAR1", b"PARE"), "it is encrypted", "write it again without encryption"),
    ] {
        fs::write(&path, bytes).unwrap();
        let shards = Shards::<Parquet<TextRow>>::parquet([&path]).unwrap();
        let mut loader = DataLoader::new(shards.map(|row, _| Ok(Text(row.text))));
        let error = match loader.batches(0, 0) {
            Ok(mut batches) => batches.next().unwrap().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(
            error.contains("rows.parquet: ") && error.contains(reason) && error.contains(remedy),
            "{error}: {reason}"
        );
    }
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
