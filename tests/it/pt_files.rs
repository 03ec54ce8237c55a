//! Loading `torch.save` files: which are read, and which are refused.

use std::fs;
use std::path::Path;

use trainer::checkpoint::LoadWeights;
use trainer::prelude::*;

use crate::model;
use crate::pt_archive::{archive, pickle};
use crate::support::{Random, exact_state, scratch};

/// Written by PyTorch: `tests/reference/weights.py`.
const THEIRS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/checkpoint.pt");
/// The weights of the model, and entries `extra.…` that cannot be read.
const UNSUPPORTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/unsupported.pt");
const UNSUPPORTED_SAFETENSORS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/reference/unsupported.safetensors");

/// Returns the error of loading the entry `x` of a file with this content as the variable
/// `fc1.weight`. Asserts that no weight changed.
fn refusal(folder: &Path, bytes: &[u8]) -> String {
    let path = folder.join("forged.pt");
    fs::write(&path, bytes).unwrap();
    let mut trainer = model::builder().build().unwrap();
    let before = exact_state(&trainer);
    let how = LoadWeights::new().rename(|name| Some(name.replace('x', "fc1.weight"))).partial(true);
    let error = trainer.load_weights(&path, &how).unwrap_err().to_string();
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
    assert!(
        whole.contains("`best` is `None`, not a tensor: the file has 9 tensors under `state_dict`"),
        "{whole}"
    );
    assert!(whole.contains("LoadWeights::new().section(\"state_dict\")"), "{whole}");
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
    assert_eq!(
        report.mismatched.iter().map(|mismatch| &*mismatch.name).collect::<Vec<_>>(),
        ["fc1.bias", "fc2.bias"]
    );
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
        assert!(error.contains(name) && error.contains("nothing in the file was executed"), "{error}");
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
    let first = find(&overlapping, b"PK\x01\x02", 0);
    let second = find(&overlapping, b"PK\x01\x02", 1);
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
            "`x`: it has the dtype complex64, which is not supported",
        ),
        (
            of(&pickle("torch\nBoolStorage", b"K\x18", b"K\0", b")", b")"), &[7; 24]),
            "neither `true` nor `false`",
        ),
        (archive(&[("a/data.pkl", &valid())]), "no data for its storage"),
        (archive(&[("a/x", &data)]), "expected weights, but the file is a zip archive: unpack it"),
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

#[test]
fn a_changed_byte_is_reported_with_the_name_of_the_record() {
    let folder = scratch("pt-changed");
    let path = folder.join("changed.pt");
    let whole = fs::read(THEIRS).unwrap();
    let how = || LoadWeights::new().section("state_dict").rename_pattern("net.*", "*").skip("bn.*");
    let mut trainer = model::builder().build().unwrap();
    trainer.load_weights(THEIRS, &how()).unwrap();
    let expected = exact_state(&trainer);
    let starts: Vec<usize> = (0..whole.len()).filter(|at| whole[*at..].starts_with(b"PK\x03\x04")).collect();
    let mut refused = Vec::new();
    for start in starts {
        let length = |at: usize| usize::from(u16::from_le_bytes([whole[start + at], whole[start + at + 1]]));
        let data = start + 30 + length(26) + length(28);
        let name = std::str::from_utf8(&whole[start + 30..start + 30 + length(26)]).unwrap();
        let mut bytes = whole.clone();
        bytes[data] ^= 1;
        fs::write(&path, &bytes).unwrap();
        // Records that are not needed are not read.
        if let Err(error) = trainer.load_weights(&path, &how()) {
            assert!(
                error.to_string().contains(&format!("the record `{name}` does not match its checksum")),
                "{error}"
            );
            refused.push(name);
        }
        assert_eq!(exact_state(&trainer), expected, "after a change in {name}");
    }
    // Both biases are in one storage.
    let names =
        ["data.pkl", "byteorder", "data/0", "data/1", "data/2"].map(|name| format!("checkpoint/{name}"));
    assert_eq!(refused, names);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_was_written_without_checksums_is_read() {
    let folder = scratch("pt-unchecked");
    let path = folder.join("unchecked.pt");
    let mut bytes = fs::read(THEIRS).unwrap();
    for at in 0..bytes.len() {
        for (signature, field) in [(b"PK\x03\x04", 14), (b"PK\x01\x02", 16)] {
            if bytes[at..].starts_with(signature) {
                bytes[at + field..at + field + 4].fill(0);
            }
        }
    }
    fs::write(&path, bytes).unwrap();
    let how = LoadWeights::new().section("state_dict").rename_pattern("net.*", "*").skip("bn.*");
    let mut trainer = model::builder().build().unwrap();
    assert_eq!(trainer.load_weights(&path, &how).unwrap().loaded.len(), 4);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_unreadable_entry_is_an_error_only_if_it_is_requested() {
    let mut trainer = model::builder().build().unwrap();
    for file in [UNSUPPORTED, UNSUPPORTED_SAFETENSORS] {
        let report = trainer.load_weights(file, &LoadWeights::new().skip("extra.*")).unwrap();
        assert_eq!((report.loaded.len(), report.unexpected.len()), (4, 0), "{file}");
        for var in trainer.vars().iter() {
            let count = i64::try_from(var.tensor.numel()).unwrap();
            let expected = Tensor::arange(count, (Kind::Float, Device::Cpu)).view_as(&var.tensor);
            assert_eq!(var.tensor, expected, "{}", var.name);
        }
        let report = trainer.load_weights(file, &LoadWeights::new().partial(true)).unwrap();
        assert!(report.unexpected.iter().any(|name| name == "extra.float8"), "{file}: {report}");
        let error = trainer.load_weights(file, &LoadWeights::new()).unwrap_err().to_string();
        assert!(error.contains("unexpected: `extra.complex`"), "{error}");
    }
    let cases: [(&str, &[(&str, &str)]); 2] = [
        (
            UNSUPPORTED,
            &[
                ("float8", "the dtype float8_e4m3fn"),
                ("complex", "the dtype complex64"),
                ("complex_half", "the dtype complex32"),
                ("uint16", "the dtype uint16"),
                ("sparse", "the layout sparse_coo"),
                ("sparse_rows", "the layout sparse_csr"),
                ("quantized", "the dtype qint8"),
                ("quantized_channels", "the dtype quint8"),
                ("nested", "the kind that `torch._utils._rebuild_nested_tensor` builds"),
                ("meta", "the kind that `torch._utils._rebuild_meta_tensor_no_storage` builds"),
                ("negated", "it is a conjugated or negated view"),
            ],
        ),
        (
            UNSUPPORTED_SAFETENSORS,
            &[("float8", "the dtype F8_E4M3"), ("complex", "the dtype C64"), ("uint16", "the dtype U16")],
        ),
    ];
    for (file, entries) in cases {
        for (name, expected) in entries {
            let wanted = |own: &str| match own.strip_prefix("extra.") {
                Some(extra) => (extra == *name).then(|| "fc1.weight".to_owned()),
                None => (own != "fc1.weight").then(|| own.to_owned()),
            };
            let before = exact_state(&trainer);
            let error =
                trainer.load_weights(file, &LoadWeights::new().rename(wanted)).unwrap_err().to_string();
            assert!(error.contains(&format!("`extra.{name}`: ")) && error.contains(expected), "{error}");
            assert!(error.contains("not supported") && error.contains(".skip("), "{error}");
            assert_eq!(exact_state(&trainer), before);
        }
    }
}

/// Returns the pickle of `{"model": {"fc1.weight": tensor}, "other": …}`, in which `other` is the
/// pickle of the value.
fn beside(other: &[u8]) -> Vec<u8> {
    let float = pickle("torch\nFloatStorage", b"K\x20", b"K\0", b"K\x08K\x04\x86", b"K\x04K\x01\x86");
    // Behind the protocol, the `dict` and the name `x`.
    let model = [b"}X\x0a\0\0\0fc1.weight".as_slice(), &float[9..float.len() - 1]].concat();
    [b"\x80\x04}X\x05\0\0\0model".as_slice(), &model, b"sX\x05\0\0\0other", other, b"s."].concat()
}

#[test]
fn a_foreign_object_is_an_error_only_in_the_section_that_was_requested() {
    let folder = scratch("pt-foreign");
    let path = folder.join("foreign.pt");
    let others: [(&str, &[u8]); 22] = [
        ("Namespace", b"cargparse\nNamespace\n)\x81}X\x01\0\0\0aK\x01sb"),
        ("Namespace of protocol 1", b"ccopy_reg\n_reconstructor\n(cargparse\nNamespace\nc__builtin__\nobject\nNtR}b"),
        ("INST", b"(K\x01icollections\nThing\n"),
        ("OBJ", b"(ccollections\nThing\nK\x01o"),
        ("NEWOBJ_EX", b"ccollections\nThing\n)}\x92"),
        ("scalar", b"cnumpy._core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\0\0\0f8\x89\x88\x87R(K\x03X\x01\0\0\0<NtbC\x01a\x86R"),
        ("set", b"\x8f(K\x01K\x02\x90"),
        ("frozenset", b"(K\x01\x91"),
        ("bytes", b"C\x02\xff\xfe"),
        ("long bytes", b"B\x02\0\0\0\xff\xfe"),
        ("bytearray", b"\x96\x02\0\0\0\0\0\0\0\xff\xfe"),
        ("seed", b"\x8a\x09\0\0\0\0\0\0\0\x80\0"),
        ("LONG4", b"\x8b\x02\0\0\0\x01\x01"),
        ("text that is not UTF-8", b"X\x03\0\0\0\xed\xb2\x80"),
        ("device", b"ctorch\ndevice\nX\x03\0\0\0cpu\x85R"),
        ("Counter", b"ccollections\nCounter\n}X\x01\0\0\0aK\x02s\x85R"),
        ("defaultdict", b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85RX\x01\0\0\0a]s"),
        ("deque", b"ccollections\ndeque\n)R(K\x01K\x02e"),
        ("partial", b"cfunctools\npartial\nc__builtin__\nprint\n\x85R(c__builtin__\nprint\n)}Ntb"),
        ("call of a result", b"cfunctools\npartial\n)R)R"),
        ("dict with other keys", b"}NK\x01sK\x07K\x01s"),
        ("protocol 0", b"(lp1\nI01\naF1.5\naL12L\naS'a'\naVb\na0N"),
    ];
    for (name, other) in others {
        let bytes = archive(&[("a/data.pkl", &beside(other)), ("a/data/0", &[0; 128])]);
        fs::write(&path, bytes).unwrap();
        let mut trainer = model::builder().build().unwrap();
        let how = || LoadWeights::new().section("model").partial(true);
        let report = trainer.load_weights(&path, &how()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(report.loaded, ["fc1.weight"], "{name}");
        let error = trainer.load_weights(&path, &LoadWeights::new()).unwrap_err().to_string();
        assert!(error.contains(".section(\"model\")"), "{name}: {error}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn files_of_the_variables_of_tch_are_read() {
    let folder = scratch("pt-tch");
    for name in ["weights.ot", "weights.pt", "weights.bin"] {
        let path = folder.join(name);
        let net = |vs: &nn::VarStore| {
            let root = vs.root();
            nn::linear(&root / "fc1", 4, 8, Default::default());
            nn::linear(&root / "fc2", 8, 3, Default::default());
        };
        let vs = nn::VarStore::new(Device::Cpu);
        net(&vs);
        vs.save(&path).unwrap();
        let mut trainer = model::builder().build().unwrap();
        let report = trainer.load_weights(&path, &LoadWeights::new()).unwrap();
        assert_eq!(report.loaded.len(), 4);
        for (name, tensor) in vs.variables() {
            assert_eq!(trainer.vars().get(&name).unwrap(), tensor, "{name}");
        }
        let error = trainer.load_weights(&path, &LoadWeights::new().section("x")).unwrap_err().to_string();
        assert!(
            error.contains("this is a TorchScript file, which has no sections: remove the call"),
            "{error}"
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_calls_that_make_names_fit_are_advised_and_work() {
    let folder = scratch("pt-names");
    let path = folder.join("names.safetensors");
    let shapes: [(&str, &[i64]); 4] =
        [("fc1.bias", &[8]), ("fc1.weight", &[8, 4]), ("fc2.bias", &[3]), ("fc2.weight", &[3, 8])];
    type Renamed = fn(&str) -> String;
    let cases: [(&str, Renamed, &[&str], &str); 6] = [
        ("prefix", |name| format!("model.{name}"), &[], ".rename_pattern(\"model.*\", \"*\")"),
        (
            "averages",
            |name| format!("module.{name}"),
            &["n_averaged"],
            ".rename_pattern(\"module.*\", \"*\").skip(\"n_averaged\")",
        ),
        ("compiled", |name| format!("_orig_mod.{name}"), &[], ".rename_pattern(\"_orig_mod.*\", \"*\")"),
        (
            "compiled layers",
            |name| name.replace('.', "._orig_mod."),
            &[],
            ".rename_pattern(\"*_orig_mod.*\", \"**\")",
        ),
        ("a head", str::to_owned, &["head.weight"], ".skip(\"head.weight\")"),
        ("many", str::to_owned, &["a.x", "a.y", "a.z", "b.x"], ".skip(\"a.*\").skip(\"b.*\")"),
    ];
    for (case, renamed, more, expected) in cases {
        let mut tensors: Vec<_> = shapes
            .iter()
            .map(|(name, shape)| (renamed(name), Tensor::ones(*shape, (Kind::Float, Device::Cpu))))
            .collect();
        tensors.extend(more.iter().map(|name| ((*name).to_owned(), Tensor::from(1.0))));
        Tensor::write_safetensors(&tensors, &path).unwrap();
        let mut trainer = model::builder().build().unwrap();
        let error = trainer.load_weights(&path, &LoadWeights::new()).unwrap_err().to_string();
        assert!(error.ends_with(&format!("the names fit with `{expected}`")), "{case}: {error}");
        // Follows the advice.
        let calls = expected.split(").").map(|call| call.split('"').skip(1).step_by(2).collect::<Vec<_>>());
        let how = calls.fold(LoadWeights::new(), |how, call| match &call[..] {
            [from, to] => how.rename_pattern(*from, *to),
            pattern => how.skip(pattern[0]),
        });
        assert_eq!(trainer.load_weights(&path, &how).unwrap().loaded.len(), 4, "{case}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_empty_file_is_reported_as_empty() {
    let folder = scratch("pt-empty");
    for name in ["weights.pt", "weights.safetensors"] {
        let path = folder.join(name);
        fs::write(&path, "").unwrap();
        let mut trainer = model::builder().build().unwrap();
        let error = trainer.load_weights(&path, &LoadWeights::new()).unwrap_err().to_string();
        assert!(
            error.contains(name)
                && error.contains("the file is an empty file: save, copy or download it again"),
            "{error}"
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn memory_is_proportional_to_the_length_of_a_forged_pickle() {
    let folder = scratch("pt-expanding");
    let path = folder.join("forged.pt");
    let mut trainer = model::builder().build().unwrap();
    // A tuple of 64 numbers, and then many tensors that have it as their shape, each of 5 bytes.
    let rebuild = b"ctorch._utils\n_rebuild_tensor_v2\nq\x00".as_slice();
    let storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ";
    let size = [b"(".as_slice(), &b"K\x01".repeat(64), b"tq\x01"].concat();
    let arguments = [b"(".as_slice(), storage, b"K\0", &size, b"h\x01\x89tq\x02"].concat();
    let many = |unit: &[u8]| unit.repeat(1_000_000 / unit.len());
    let key = [b"X\xff\xff\x03\0".as_slice(), &[b'k'].repeat(0x3_ffff)].concat();
    let cases = [
        ("tensors", [rebuild, &arguments, &many(b"h\x00h\x02R"), b"."].concat()),
        ("storages", [&arguments[..], &many(b"h\x01Q"), b"."].concat()),
        ("marked tuples", [&b"N".repeat(1000), many(b"(h\0t").as_slice(), b"."].concat()),
        ("tuples", [&size, many(b"h\x01\x85").as_slice(), b"."].concat()),
        ("long keys", [b"}", &key[..], b"q\0K\x01s", &many(b"h\0K\x01s"), b"."].concat()),
        ("long names", [&key[..], b"q\0", &many(b"h\0h\0\x93"), b"."].concat()),
        (
            "long layouts",
            [&key[..], b"q\0ctorch.serialization\n_get_layout\nq\x01", &many(b"h\x01h\0\x85R"), b"."]
                .concat(),
        ),
        ("metadata", [rebuild, &many(b"}h\x00b"), b"."].concat()),
        ("dicts", [b"}q\0", &many(b"h\0h\0s")[..], b"."].concat()),
    ];
    for (name, pickle) in cases {
        let bytes = archive(&[("a/data.pkl", &pickle), ("a/data/0", &[0; 24])]);
        fs::write(&path, &bytes).unwrap();
        let mut result = Ok(());
        let used = allocation_counter::measure(|| {
            result = trainer.load_weights(&path, &LoadWeights::new()).map(drop);
        });
        assert!(result.is_err(), "{name}");
        let bound = 200 * bytes.len() as u64;
        assert!(used.bytes_max < bound, "{name}: {} bytes for {}", used.bytes_max, bytes.len());
        assert!(used.bytes_total < 2 * bound, "{name}: {} bytes for {}", used.bytes_total, bytes.len());
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// Returns the position of the nth occurrence.
fn find(bytes: &[u8], text: &[u8], nth: usize) -> usize {
    bytes
        .windows(text.len())
        .enumerate()
        .filter(|(_, part)| *part == text)
        .map(|(at, _)| at)
        .nth(nth)
        .unwrap()
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
