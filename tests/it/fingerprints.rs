//! What a resume notices of other data of the same size.

use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};
use trainer::data::{ImageFolder, Mixture, NamedLoaders, Shards, TokenFile, from_fn, read_csv};
use trainer::hooks::Checkpoint;
use trainer::prelude::*;

use crate::model::{self, builder};
use crate::support::{cancelled_at, scratch};

/// A batch of tensors with the same shape for each version.
fn tensors(version: i64) -> (Tensor, Tensor) {
    let inputs = Tensor::arange(32, (Kind::Float, Device::Cpu)).view([8, 4]);
    let labels = Tensor::arange(8, (Kind::Int64, Device::Cpu)).remainder(3);
    let _ = labels.get(7).f_fill_(version).unwrap();
    (inputs, labels)
}

#[expect(clippy::needless_pass_by_value, reason = "the table of cases is easier to read")]
fn fingerprint<B: Batch>(loader: impl Loader<B>) -> String {
    loader.fingerprint().unwrap_or_default()
}

/// Writes data sets of files in which one value depends on the version, and returns the fingerprint
/// of each kind of loader.
fn fingerprints(folder: &Path, version: u8) -> Vec<(&'static str, String)> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder.join("images/cat")).unwrap();
    let tokens: Vec<u8> = (0..100).chain([version]).chain(101..200).flat_map(|token| [token, 0]).collect();
    fs::write(folder.join("tokens.bin"), tokens).unwrap();
    fs::write(folder.join("rows.csv"), format!("x,y\n1,2\n3,{version}\n")).unwrap();
    let image = RgbImage::from_pixel(4, 4, Rgb([version; 3]));
    image.save(folder.join("images/cat/a.bmp")).unwrap();
    let mut tar = tar::Builder::new(fs::File::create(folder.join("a.tar")).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    header.set_cksum();
    tar.append_data(&mut header, "a.txt", &[version][..]).unwrap();
    tar.into_inner().unwrap();

    let in_memory = || InMemory::new(tensors(version.into())).unwrap().batch_size(4);
    let file = || TokenFile::u16(folder.join("tokens.bin")).unwrap().sequence(10);
    let stored: Vec<i64> = vec![version.into(); 8];
    let mixture = || Mixture::new().add(file(), 1.0);
    let named = NamedLoaders::new().add("a", in_memory()).add("b", in_memory().shuffle(1));
    vec![
        ("InMemory", fingerprint(in_memory())),
        ("shuffled", fingerprint(in_memory().shuffle(7).drop_last(true))),
        ("prefetched", fingerprint(in_memory().prefetch(2))),
        ("sliced", fingerprint(in_memory().sliced())),
        ("NamedLoaders", fingerprint(named)),
        ("TokenFile", fingerprint(DataLoader::new(file()))),
        (
            "windows",
            fingerprint(DataLoader::new(TokenFile::u16(folder.join("tokens.bin")).unwrap().windows(10, 5))),
        ),
        ("ImageFolder", fingerprint(DataLoader::new(ImageFolder::open(folder.join("images")).unwrap()))),
        (
            "map",
            fingerprint(DataLoader::new(
                ImageFolder::open(folder.join("images")).unwrap().map(|row, _| Ok(row)),
            )),
        ),
        (
            "tar",
            fingerprint(DataLoader::new(
                Shards::tar([folder.join("a.tar")])
                    .unwrap()
                    .map(|sample, _| Ok(sample.part("txt")?.len() as i64)),
            )),
        ),
        ("csv", fingerprint(DataLoader::new(read_csv::<(f32, i64)>(folder.join("rows.csv")).unwrap()))),
        ("subset", fingerprint(DataLoader::new(file().subset(vec![0, 3])))),
        ("weighted", fingerprint(DataLoader::new(file().weighted(&vec![1.0; file().len()], 5)))),
        ("mixture", fingerprint(DataLoader::new(mixture()))),
        (
            "identified",
            fingerprint::<Tensor>(from_fn(|_| [Tensor::new()]).with_fingerprint(format!("v{version}"))),
        ),
        (
            "identified rows",
            fingerprint(DataLoader::new(stored.clone()).with_fingerprint(format!("v{version}"))),
        ),
        (
            "identified ranks",
            fingerprint::<Tensor>(
                from_fn(|_| [Tensor::new()]).per_rank().with_fingerprint(format!("v{version}")),
            ),
        ),
        ("unknown: Vec", fingerprint(DataLoader::new(stored.clone()))),
        ("unknown: part of a Vec", fingerprint(DataLoader::new(stored.clone().subset(vec![1])))),
        (
            "unknown: weighted",
            fingerprint(DataLoader::new(stored.clone().balanced(&[0, 1, 0, 1, 0, 1, 0, 1]))),
        ),
        ("unknown: mixture", fingerprint(DataLoader::new(Mixture::new().add(stored, 1.0)))),
    ]
}

#[test]
fn each_loader_notices_other_content_or_says_that_it_cannot() {
    let folder = scratch("fingerprints");
    let first = fingerprints(&folder, 1);
    assert_eq!(first, fingerprints(&folder, 1));
    for ((name, one), (_, other)) in first.iter().zip(fingerprints(&folder, 2)) {
        let is_unknown = one.contains("unknown content");
        assert_eq!(is_unknown, name.starts_with("unknown"), "{name}: {one}");
        assert_eq!(*one != other, !is_unknown, "{name}: {one}, {other}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Trains two batches of data and resumes with other data.
fn resumed<B>(first: &mut dyn Loader<(Tensor, Tensor)>, second: &mut B) -> std::result::Result<(), String>
where
    B: Loader<(Tensor, Tensor)>,
{
    let folder = scratch("other-data");
    let hook = || Checkpoint::new(&folder).every(Every::Steps(1));
    let mut trainer = cancelled_at(Some(1), builder().hook(hook())).build().unwrap();
    trainer.fit(first, None).unwrap_err();
    drop(trainer);
    let mut trainer = cancelled_at(None, builder().hook(hook()).resume(Resume::Auto)).build().unwrap();
    let result = trainer.fit(second, None);
    fs::remove_dir_all(&folder).unwrap();
    result.map(drop).map_err(|error| model::message(&error))
}

#[test]
fn a_resume_with_other_data_of_the_same_size_is_refused() {
    let in_memory = |version| InMemory::new(tensors(version)).unwrap().batch_size(4);
    resumed(&mut in_memory(1), &mut in_memory(1)).unwrap();
    let error = resumed(&mut in_memory(1), &mut in_memory(2)).unwrap_err();
    assert!(error.contains("the training data was 8 rows, batch size 4, not shuffled, content <"), "{error}");
    let stream = |text: &str| {
        let stream = from_fn(|_| (0..4).map(|_| tensors(0)));
        stream.deterministic(true).with_fingerprint(text)
    };
    resumed(&mut stream("v1"), &mut stream("v1")).unwrap();
    let error = resumed(&mut stream("v1"), &mut stream("v2")).unwrap_err();
    assert!(
        error.contains("was content <v1> when the checkpoint was written and is now content <v2>"),
        "{error}"
    );
}
