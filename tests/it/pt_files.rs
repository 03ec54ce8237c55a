//! Loading `torch.save` files: which are read, and which are refused.

use std::fs;
use std::path::Path;

use trainer::checkpoint::LoadWeights;
use trainer::prelude::*;

use crate::model;
use crate::support::{Random, exact_state, scratch};

/// Written by PyTorch: `tests/reference/weights.py`.
const THEIRS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/checkpoint.pt");

/// Returns a zip archive without compression.
fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    let le = |number: usize, count: usize| (number as u64).to_le_bytes()[..count].to_vec();
    for (name, data) in entries {
        let start = bytes.len();
        let common =
            [le(0, 2), le(0, 2), le(0, 4), le(0, 4), le(data.len(), 4), le(data.len(), 4), le(name.len(), 2)];
        bytes.extend([b"PK\x03\x04\x14\x00".to_vec(), common.concat(), le(0, 2)].concat());
        bytes.extend(name.as_bytes());
        bytes.extend(*data);
        directory.extend([b"PK\x01\x02\x14\x00\x14\x00".to_vec(), common.concat()].concat());
        directory.extend([le(0, 2), le(0, 2), le(0, 2), le(0, 2), le(0, 4), le(start, 4)].concat());
        directory.extend(name.as_bytes());
    }
    let (start, count) = (bytes.len(), entries.len());
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([le(count, 2), le(count, 2), le(directory.len(), 4), le(start, 4), le(0, 2)].concat());
    bytes
}

/// Returns the pickle of `{"x": tensor}` with this storage and view.
fn pickle(class: &str, elements: &[u8], offset: &[u8], size: &[u8], stride: &[u8]) -> Vec<u8> {
    let parts: [&[u8]; 13] = [
        b"\x80\x02}X\x01\0\0\0x",
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagec",
        class.as_bytes(),
        b"\nX\x01\0\0\x000X\x03\0\0\0cpu",
        elements,
        b"tQ",
        offset,
        size,
        stride,
        b"\x89ccollections\nOrderedDict\n)R",
        b"tR",
        b"s",
        b".",
    ];
    parts.concat()
}

/// Returns the error of loading a file with this content. Asserts that no weight changed.
fn refusal(folder: &Path, bytes: &[u8]) -> String {
    let path = folder.join("forged.pt");
    fs::write(&path, bytes).unwrap();
    let mut trainer = model::builder().build().unwrap();
    let before = exact_state(&trainer);
    let error = trainer.load_weights(&path, &LoadWeights::new().partial(true)).unwrap_err().to_string();
    assert_eq!(exact_state(&trainer), before, "nothing has changed");
    assert!(error.contains("forged.pt"), "{error}");
    error
}

#[test]
fn a_pytorch_checkpoint_is_loaded() {
    let mut trainer = model::builder().build().unwrap();
    let how = || LoadWeights::new().section("state_dict").rename_pattern("net.*", "*");
    let loaded = trainer.load_weights(THEIRS, &how().skip("bn.*")).unwrap();
    assert_eq!(loaded.loaded, ["fc1.bias", "fc1.weight", "fc2.bias", "fc2.weight"]);
    assert_eq!((loaded.missing.len(), loaded.unexpected.len(), loaded.mismatched.len()), (0, 0, 0));
    for var in trainer.vars().iter() {
        let count = i64::try_from(var.tensor.numel()).unwrap();
        let expected = Tensor::arange(count, (Kind::Float, Device::Cpu)).view_as(&var.tensor);
        assert_eq!(var.tensor, expected, "{}", var.name);
    }

    let error = trainer.load_weights(THEIRS, &how()).unwrap_err().to_string();
    assert!(error.contains("unexpected: `net.bn.bias`"), "{error}");
    let report = trainer.load_weights(THEIRS, &how().partial(true)).unwrap();
    assert!(report.to_string().starts_with("4 variables loaded\n- unexpected: `net.bn.bias`"), "{report}");
}

#[test]
fn mismatched_files_are_reported_with_advice() {
    let mut trainer = model::builder().build().unwrap();
    let mut error = |how: LoadWeights<'_>| trainer.load_weights(THEIRS, &how).unwrap_err().to_string();
    let whole = error(LoadWeights::new());
    assert!(whole.contains("`epoch` is an `int`, not a tensor"), "{whole}");
    let section = error(LoadWeights::new().section("model"));
    assert!(section.contains("no state dict under the key `model`; the keys are `epoch`, `lr`"), "{section}");
    let own = || LoadWeights::new().section("state_dict");
    let pattern = error(own().rename_pattern("module.*", "*"));
    assert!(
        pattern.contains("`.rename_pattern(\"module.*\", \"*\")`: no tensor has a name that matches"),
        "{pattern}"
    );
    let skip = error(own().skip("classifier.*"));
    assert!(skip.contains("`.skip(\"classifier.*\")`"), "{skip}");
    let stars = error(own().rename_pattern("net.*", "*.*"));
    assert!(stars.contains("more `*`"), "{stars}");
    let twice = error(own().rename_pattern("net.bn.weight", "net.fc1.bias").rename_pattern("net.*", "*"));
    assert!(twice.contains("two of its tensors have the name `fc1.bias` after renaming"), "{twice}");
    // `fc1.bias` has 8 elements, and `fc2.bias` 3.
    let swap = || {
        let swapped = own()
            .skip("net.bn.*")
            .rename_pattern("net.fc1.bias", "x")
            .rename_pattern("net.fc2.bias", "fc1.bias");
        swapped.rename_pattern("x", "fc2.bias").rename_pattern("net.*", "*")
    };
    let shape = error(swap());
    assert!(shape.contains("`fc1.bias` has the shape [3] in the file, but [8] in this trainer"), "{shape}");
    assert!(
        shape.contains("`fc2.bias` has the shape [8]") && shape.contains(".skip_mismatched(true)"),
        "{shape}"
    );
    let report = trainer.load_weights(THEIRS, &swap().skip_mismatched(true)).unwrap();
    assert_eq!(report.mismatched.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["fc1.bias", "fc2.bias"]);
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/state_dict.safetensors");
    let section = trainer.load_weights(other, &own()).unwrap_err().to_string();
    assert!(section.contains("`.section(\"state_dict\")` is for `torch.save` files"), "{section}");
}

#[test]
fn a_pickle_that_references_code_is_refused() {
    let folder = scratch("pt-code");
    let target = folder.join("executed");
    let command = format!("touch {}", target.display());
    let call =
        [b"\x80\x02cposix\nsystem\n(X".as_slice(), &u32::try_from(command.len()).unwrap().to_le_bytes()];
    let call = [&call.concat(), command.as_bytes(), b"tR."].concat();
    let by_stack = b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.".to_vec();
    let class = b"\x80\x02c__main__\nModel\n)\x81}b.".to_vec();
    let near = b"\x80\x02ctorch\nload\n)R.".to_vec();
    let cases = [
        (call, "`posix.system`"),
        (by_stack, "`builtins.eval`"),
        (class, "`__main__.Model`"),
        (near, "`torch.load`"),
    ];
    for (pickle, name) in cases {
        let error = refusal(&folder, &archive(&[("archive/data.pkl", &pickle)]));
        assert!(error.contains(name) && error.contains("nothing in the file is executed"), "{error}");
    }
    assert!(!target.exists());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn forged_files_are_refused() {
    let folder = scratch("pt-forged");
    let float = "torch\nFloatStorage";
    let valid = || pickle(float, b"K\x06", b"K\0", b"K\x03K\x02\x86", b"K\x02K\x01\x86");
    let data = [0_u8; 24];
    let of = |pickle: &[u8], data: &[u8]| archive(&[("a/data.pkl", pickle), ("a/data/0", data)]);
    // The valid file is read; its only tensor has another name.
    let path = folder.join("valid.pt");
    fs::write(&path, of(&valid(), &data)).unwrap();
    let mut trainer = model::builder().build().unwrap();
    let report = trainer.load_weights(&path, &LoadWeights::new().partial(true)).unwrap();
    assert_eq!(report.unexpected, ["x"]);

    let huge = b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f";
    let sizes = [b"K\x03".as_slice(), huge, b"\x86"].concat();
    let mut overlapping = of(&valid(), &data);
    let (first, second) = (find(&overlapping, b"PK\x01\x02", 0), find(&overlapping, b"PK\x01\x02", 1));
    // The second entry gets the offset of the first.
    overlapping.copy_within(first + 20..first + 28, second + 20);
    overlapping.copy_within(first + 42..first + 46, second + 42);
    let mut compressed = of(&valid(), &data);
    let at = find(&compressed, b"PK\x01\x02", 0);
    compressed[at + 10] = 8;
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (of(&valid(), &data[..20]), "its storage has 20 bytes, which does not match 6 elements of Float"),
        (of(&pickle(float, huge, b"K\0", b")", b")"), &data), "does not match 9223372036854775807 elements"),
        (of(&pickle(float, b"J\xff\xff\xff\xff", b"K\0", b")", b")"), &data), "does not match -1 elements"),
        (of(&pickle(float, b"K\x06", b"K\0", &sizes, &sizes), &data), "exceeds its storage of 6 elements"),
        (of(&pickle(float, b"K\x06", b"K\x06", b")", b")"), &data), "exceeds its storage of 6 elements"),
        (of(&pickle(float, b"K\x06", b"J\xff\xff\xff\xff", b")", b")"), &data), "exceeds its storage"),
        (
            of(&pickle("torch\nComplexFloatStorage", b"K\x03", b"K\0", b")", b")"), &data),
            "`torch.ComplexFloatStorage`",
        ),
        (
            of(&pickle("torch\nBoolStorage", b"K\x18", b"K\0", b")", b")"), &[7; 24]),
            "neither `true` nor `false`",
        ),
        (archive(&[("a/data.pkl", &valid())]), "no data for its storage"),
        (archive(&[("a/x", &data)]), "expected exactly one `data.pkl`"),
        (archive(&[("a/data.pkl", b"\x80\x02]."), ("a/byteorder", b"little")]), "found a `list`"),
        (archive(&[("a/data.pkl", &valid()), ("a/byteorder", b"big"), ("a/data/0", &data)]), "big-endian"),
        (archive(&[("a/data.pkl", &valid()), ("a/data/0", &data), ("a/data/0", &data)]), "occurs twice"),
        (overlapping, "overlap"),
        (compressed, "is compressed"),
        (
            b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M".to_vec(),
            "before version 1.6",
        ),
        (b"PK\x03\x04".to_vec(), "truncated"),
    ];
    for (bytes, expected) in cases {
        let error = refusal(&folder, &bytes);
        assert!(error.contains(expected), "expected {expected}: {error}");
    }
    let whole = of(&valid(), &data);
    for length in 4..whole.len() {
        refusal(&folder, &whole[..length]);
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// Returns the position of the nth occurrence.
fn find(bytes: &[u8], text: &[u8], nth: usize) -> usize {
    bytes.windows(text.len()).enumerate().filter(|(_, it)| *it == text).map(|(at, _)| at).nth(nth).unwrap()
}

#[test]
fn files_with_random_changes_are_read_or_refused_without_panicking() {
    let folder = scratch("pt-random");
    let path = folder.join("changed.pt");
    let whole = fs::read(THEIRS).unwrap();
    // Most bytes are data and padding, so most changes are made in the pickle and the directory.
    let pickle = find(&whole, b"\x80\x02}q", 0);
    let directory = find(&whole, b"PK\x01\x02", 0);
    let mut random = Random(0x5eed);
    let mut trainer = model::builder().build().unwrap();
    let how =
        LoadWeights::new().section("state_dict").rename(|name| name.strip_prefix("net.").map(str::to_owned));
    let how = how.partial(true).skip_mismatched(true);
    let mut refused = 0;
    for round in 0..4000 {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(4) {
            let at = match round % 3 {
                0 => random.below(bytes.len()),
                1 => pickle + random.below(1200),
                _ => directory + random.below(bytes.len() - directory),
            };
            bytes[at] = match random.below(3) {
                0 => bytes[at] ^ (1 << random.below(8)),
                1 => 0xff,
                _ => u8::try_from(random.below(256)).unwrap(),
            };
        }
        fs::write(&path, &bytes).unwrap();
        refused += usize::from(trainer.load_weights(&path, &how).is_err());
    }
    assert!(refused > 1000, "{refused} of 4000 were refused");
    fs::remove_dir_all(&folder).unwrap();
}
