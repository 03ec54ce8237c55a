//! Recognizing the format of a file by its first bytes, for the messages of readers that expect a
//! different one.
//!
//! Everything here works on bytes and never fails. A format is only named if the bytes leave no
//! doubt, because the message sends the reader to a remedy.

use Format::*;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Empty,
    LfsPointer,
    Html,
    Xml,
    Json,
    Utf16,
    Text,
    Safetensors,
    /// The archive that `torch.save` writes.
    TorchSave,
    /// The format of `torch.save` from before PyTorch 1.6.
    TorchSaveLegacy,
    /// The tar archive of the first releases of PyTorch.
    TorchTar,
    TorchScript,
    TorchExport,
    Pickle,
    Hdf5,
    Keras,
    Gguf,
    Onnx,
    TfLite,
    MessagePack,
    Npy,
    Npz,
    Matlab,
    Parquet,
    Arrow,
    Orc,
    Avro,
    Sqlite,
    Zip,
    Tar,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    Lz4,
    Zlib,
    SevenZip,
    Rar,
    Png,
    Jpeg,
    Gif,
    WebP,
    Heif,
    Avif,
    Svg,
    Wave,
    Pdf,
    Program,
    Unknown,
}

/// Formats that have a signature: its offset, its bytes, and the format.
const SIGNATURES: [(usize, &[u8], Format); 50] = [
    (0, b"version https://git-lfs.github.com/spec/", LfsPointer),
    (0, b"\x89HDF\r\n\x1a\n", Hdf5),
    // Behind a user block.
    (512, b"\x89HDF\r\n\x1a\n", Hdf5),
    (1024, b"\x89HDF\r\n\x1a\n", Hdf5),
    (2048, b"\x89HDF\r\n\x1a\n", Hdf5),
    (0, b"MATLAB 5.0 MAT-file", Matlab),
    (0, b"GGUF", Gguf),
    (4, b"TFL3", TfLite),
    (0, b"\x93NUMPY", Npy),
    (0, b"PAR1", Parquet),
    (0, b"PARE", Parquet),
    (0, b"ARROW1", Arrow),
    (0, b"FEA1", Arrow),
    (0, b"ORC", Orc),
    (0, b"Obj\x01", Avro),
    (0, b"SQLite format 3\0", Sqlite),
    (0, b"PK\x05\x06", Zip),
    (257, b"ustar", Tar),
    (0, b"\x1f\x8b", Gzip),
    (0, b"\x28\xb5\x2f\xfd", Zstd),
    (0, b"\xfd7zXZ\0", Xz),
    (0, b"BZh", Bzip2),
    (0, b"\x04\x22\x4d\x18", Lz4),
    (0, b"7z\xbc\xaf\x27\x1c", SevenZip),
    (0, b"Rar!\x1a\x07", Rar),
    (0, b"\x89PNG\r\n\x1a\n", Png),
    (0, b"\xff\xd8\xff", Jpeg),
    (0, b"GIF87a", Gif),
    (0, b"GIF89a", Gif),
    (8, b"WEBP", WebP),
    (8, b"WAVE", Wave),
    (4, b"ftypheic", Heif),
    (4, b"ftypheix", Heif),
    (4, b"ftyphevc", Heif),
    (4, b"ftypmif1", Heif),
    (4, b"ftypmsf1", Heif),
    (4, b"ftypavif", Avif),
    (0, b"%PDF-", Pdf),
    (0, b"\x7fELF", Program),
    (0, b"\xcf\xfa\xed\xfe", Program),
    (0, b"\xca\xfe\xba\xbe", Program),
    (0, b"\0asm", Program),
    (0, b"MZ\x90\0", Program),
    (0, b"\xff\xfe", Utf16),
    (0, b"\xfe\xff", Utf16),
    // Pickles of protocols 0 and 1, as Python 2 writes them.
    (0, b"ccopy_reg\n", Pickle),
    (0, b"ccollections\n", Pickle),
    (0, b"ccopyreg\n", Pickle),
    (0, b"(dp0\n", Pickle),
    (0, b"(lp0\n", Pickle),
];

/// The first object of a file from before PyTorch 1.6: the opcode of a long number, and the number.
const LEGACY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";

impl Format {
    /// Recognizes a file by its bytes, of which the first 64 KiB are sufficient.
    pub(crate) fn of(bytes: &[u8]) -> Format {
        if bytes.is_empty() {
            return Empty;
        }
        if bytes.starts_with(b"PK\x03\x04") {
            return Format::of_archive(first_name(bytes));
        }
        if is_pickle(bytes) {
            return if is_legacy(bytes) { TorchSaveLegacy } else { Pickle };
        }
        let signature = SIGNATURES
            .iter()
            .find(|(at, signature, _)| bytes.get(*at..).is_some_and(|bytes| bytes.starts_with(signature)));
        match signature {
            // Letters alone could be the beginning of a text.
            Some((_, letters, format)) if !format.is_text() && is_text(letters) && is_text(bytes) => {}
            Some((_, _, WebP | Wave)) if !bytes.starts_with(b"RIFF") => {}
            Some((_, _, Bzip2)) if !bytes.get(3).is_some_and(u8::is_ascii_digit) => {}
            Some((_, _, Gzip)) if !is_gzip(bytes) => {}
            Some((_, _, Tar)) => return tar(bytes),
            Some((.., format)) => return *format,
            None => {}
        }
        match () {
            () if is_safetensors(bytes) => Safetensors,
            () if is_old_tar(bytes) => tar(bytes),
            () if is_onnx(bytes) => Onnx,
            () if is_message_pack(bytes) => MessagePack,
            () if is_zlib(bytes) => Zlib,
            () => text(bytes),
        }
    }

    /// Whether a file of this format begins with text.
    fn is_text(self) -> bool {
        matches!(self, LfsPointer | Matlab | Pdf | Pickle | Utf16)
    }

    /// Recognizes a zip archive by the names of its entries.
    pub(crate) fn of_archive<'a>(names: impl IntoIterator<Item = &'a str>) -> Format {
        let mut format = Zip;
        for name in names {
            let last = name.rsplit('/').next().unwrap_or_default();
            let found = match last {
                _ if name.contains("/code/__torch__") => TorchScript,
                "constants.pkl" => TorchScript,
                "serialized_exported_program.json" | "archive_format" => TorchExport,
                "model.weights.h5" => Keras,
                "data.pkl" if name != last => TorchSave,
                // TorchScript from before PyTorch 1.4.
                "model.json" if name.matches('/').count() == 1 => TorchScript,
                _ if last.ends_with(".npy") => Npz,
                _ => continue,
            };
            // Archives of TorchScript have the entries of `torch.save` too.
            if format == Zip || (format == TorchSave && found == TorchScript) {
                format = found;
            }
        }
        format
    }

    /// Whether no other data can begin like a file of this format: at least four bytes are
    /// compared, and they are not merely text or small numbers.
    pub(crate) fn is_certain(self) -> bool {
        let is_doubtful = matches!(
            self,
            Empty
                | Html
                | Xml
                | Svg
                | Json
                | Utf16
                | Text
                | Safetensors
                | Pickle
                | Onnx
                | MessagePack
                | Orc
                | Jpeg
                | Zlib
                | Unknown
        );
        !is_doubtful
    }

    /// Describes a file of this format, with an article.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Empty => "an empty file",
            LfsPointer => "a Git LFS pointer",
            Html => "a web page (HTML)",
            Xml => "an XML document",
            Json => "a JSON file",
            Utf16 => "a text in UTF-16",
            Text => "a text file",
            Safetensors => "a safetensors file",
            TorchSave => "a file of PyTorch's `torch.save`",
            TorchSaveLegacy => "a `torch.save` file in PyTorch's format from before version 1.6",
            TorchTar => "a tar archive of PyTorch from before version 0.1.10",
            TorchScript => "a TorchScript file",
            TorchExport => "a program of PyTorch's `torch.export.save`",
            Pickle => "a Python pickle, as `pickle.dump` and `joblib.dump` write them",
            Hdf5 => "an HDF5 file, as Keras and h5py write them",
            Keras => "a Keras archive (`.keras`)",
            Gguf => "a GGUF file, as llama.cpp reads them",
            Onnx => "an ONNX file",
            TfLite => "a TensorFlow Lite file",
            MessagePack => "a MessagePack file, as Flax writes them",
            Npy => "a NumPy array (`.npy`)",
            Npz => "a NumPy archive (`.npz`)",
            Matlab => "a MATLAB file",
            Parquet => "a Parquet file",
            Arrow => "an Arrow or Feather file",
            Orc => "an ORC file",
            Avro => "an Avro file",
            Sqlite => "an SQLite database",
            Zip => "a zip archive",
            Tar => "a tar archive",
            Gzip => "compressed with gzip",
            Zstd => "compressed with zstd",
            Xz => "compressed with xz",
            Bzip2 => "compressed with bzip2",
            Lz4 => "compressed with lz4",
            Zlib => "compressed with zlib, as `joblib.dump(…, compress=True)` does",
            SevenZip => "a 7-Zip archive",
            Rar => "a RAR archive",
            Png => "a PNG image",
            Jpeg => "a JPEG image",
            Gif => "a GIF image",
            WebP => "a WebP image",
            Heif => "an HEIF image (`.heic`)",
            Avif => "an AVIF image",
            Svg => "an SVG image",
            Wave => "a WAVE sound",
            Pdf => "a PDF document",
            Program => "a compiled program or library",
            Unknown => "in no format that is known here",
        }
    }

    /// What to do about a file of this format in most readers; `None` if that depends on the
    /// reader.
    pub(crate) fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Empty => "save, copy or download it again",
            LfsPointer => {
                "the file itself was not downloaded: run `git lfs install` and `git lfs pull` in its repository"
            }
            Html | Xml => {
                "the server sent a page instead of the file: download it again from its direct link (on the Hugging Face hub, \
                 `/resolve/` instead of `/blob/`), and sign in if that is required"
            }
            Utf16 => "convert it to UTF-8",
            Zip | Tar | SevenZip | Rar => "unpack it, and name the file in it",
            Gzip => "decompress it, for example with `gunzip`",
            Zstd => "decompress it, for example with `zstd -d`",
            Xz => "decompress it, for example with `unxz`",
            Bzip2 => "decompress it, for example with `bunzip2`",
            Lz4 => "decompress it, for example with `lz4 -d`",
            _ => return None,
        })
    }
}

/// Describes a file that is not of the format that a reader expects: what was expected, what was
/// found, and what to do, which `remedy` returns for a format.
pub(crate) fn unexpected(
    bytes: &[u8],
    format: Format,
    expected: &str,
    remedy: impl FnOnce(Format) -> &'static str,
) -> String {
    let begins = match format {
        Text => format!(" that begins with {:?}", first_line(bytes)),
        Unknown => {
            let bytes: Vec<_> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!(": it begins with the bytes {}", bytes.join(" "))
        }
        _ => String::new(),
    };
    format!("expected {expected}, but the file is {}{begins}: {}", format.what(), remedy(format))
}

/// The beginning of the first line of a text.
fn first_line(bytes: &[u8]) -> String {
    let line = bytes.split(|byte| b"\r\n".contains(byte)).next().unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(240)]).chars().take(60).collect()
}

/// The name of the first entry of a zip archive.
fn first_name(bytes: &[u8]) -> Option<&str> {
    let length = u16::from_le_bytes(*bytes.get(26..)?.first_chunk()?);
    std::str::from_utf8(bytes.get(30..30 + usize::from(length))?).ok()
}

/// Whether a pickle of protocol 2 to 5 begins here, with an opcode with which one can begin.
fn is_pickle(bytes: &[u8]) -> bool {
    const FIRST: &[u8] = b"\x95\x8a\x8b}](){cNKMJGXBCTU\x88\x89\x8c\x8d\x8e\x8f";
    matches!(bytes, [0x80, 2..=5, first, ..] if FIRST.contains(first))
}

/// Whether a file has the format of `torch.save` from before PyTorch 1.6.
pub(crate) fn is_legacy(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(32)];
    start.first() == Some(&0x80) && start.windows(LEGACY.len()).any(|window| window == LEGACY)
}

/// Whether a file begins with the length of a `safetensors` header and the header's first byte.
pub(crate) fn is_safetensors(bytes: &[u8]) -> bool {
    let length = bytes.first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
    bytes.get(8) == Some(&b'{') && length.is_some_and(|length| (2..=100_000_000).contains(&length))
}

/// A tar archive, or the one that the first releases of PyTorch wrote.
fn tar(bytes: &[u8]) -> Format {
    let mut header = bytes;
    // A block of further attributes, which may come first, has its length in octal digits.
    if bytes[156] == b'x' {
        let length = std::str::from_utf8(&bytes[124..135])
            .ok()
            .and_then(|digits| usize::from_str_radix(digits, 8).ok());
        let skipped = length.and_then(|length| length.checked_next_multiple_of(512)?.checked_add(512));
        header = skipped.and_then(|skipped| bytes.get(skipped..)).unwrap_or(bytes);
    }
    let name = &header[..header.len().min(100)];
    match name.split(|byte| *byte == 0).next().unwrap_or_default() {
        b"sys_info" | b"pickle" | b"tensors" | b"storages" | b"./sys_info" => TorchTar,
        _ => Tar,
    }
}

/// Whether a header of a tar archive without signature begins here, which has a checksum.
fn is_old_tar(bytes: &[u8]) -> bool {
    let Some(header) = bytes.get(..512) else { return false };
    let octal = std::str::from_utf8(&header[148..156]).unwrap_or_default();
    let recorded = u32::from_str_radix(octal.trim_matches(['\0', ' ']), 8);
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    header[0] != 0 && recorded == Ok(sum(&header[..148]) + sum(&header[156..]) + 8 * u32::from(b' '))
}

/// Whether the fields of an ONNX model begin here: the number of its format, texts about its
/// producer, and a graph. All are fields of `ModelProto` in `onnx.proto`.
fn is_onnx(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    if !matches!(varint(&mut rest), Some(8)) || !matches!(varint(&mut rest), Some(1..=99)) {
        return false;
    }
    loop {
        match varint(&mut rest) {
            Some(0x28) if varint(&mut rest).is_some() => {} // model_version
            // producer_name, producer_version, domain, doc_string
            Some(0x12 | 0x1a | 0x22 | 0x32) => {
                let length = varint(&mut rest).and_then(|length| usize::try_from(length).ok());
                let Some((text, after)) = length.and_then(|length| rest.split_at_checked(length)) else {
                    return false;
                };
                if std::str::from_utf8(text).is_err() {
                    return false;
                }
                rest = after;
            }
            // opset_import, metadata_props
            Some(0x42 | 0x72) => {
                let length = varint(&mut rest).and_then(|length| usize::try_from(length).ok());
                let Some((_, after)) = length.and_then(|length| rest.split_at_checked(length)) else {
                    return false;
                };
                rest = after;
            }
            // A graph, which begins with a node (1), a name (2) or a tensor (5), each with a
            // length.
            Some(0x3a) => {
                return varint(&mut rest).is_some_and(|length| length >= 2)
                    && matches!(rest.first(), Some(0x0a | 0x12 | 0x2a));
            }
            _ => return false,
        }
    }
}

/// Reads a number of protobuf.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Whether a map of MessagePack begins here whose first key is a name, as in Flax. If the name has
/// only one letter, its value must be a map or an array of numbers.
fn is_message_pack(bytes: &[u8]) -> bool {
    let rest = match bytes {
        [0x81..=0x8f, rest @ ..] => rest,
        [0xde, _, _, rest @ ..] => rest,
        _ => return false,
    };
    let (length, rest) = match rest {
        [length @ 0xa1..=0xbf, rest @ ..] => (usize::from(length - 0xa0), rest),
        [0xd9, length, rest @ ..] => (usize::from(*length), rest),
        _ => return false,
    };
    let Some((key, [value, ..])) = rest.split_at_checked(length) else { return false };
    let is_value = matches!(value, 0x80..=0x8f | 0xc7..=0xc9 | 0xd4..=0xd8 | 0xde | 0xdf);
    key.iter().all(|byte| byte.is_ascii_alphanumeric() || b"_-./ ".contains(byte))
        && (is_value || key.len() > 1)
}

/// Whether the header of gzip begins here, with the fields of RFC 1952: the method, reserved flags,
/// the level of the compression and the system.
fn is_gzip(bytes: &[u8]) -> bool {
    matches!(bytes, [_, _, 8, 0..=31, _, _, _, _, 0 | 2 | 4, 0..=13 | 255, ..])
}

/// Whether a stream of zlib begins here. Its two bytes can also begin a text, so a byte that is not
/// text must follow.
fn is_zlib(bytes: &[u8]) -> bool {
    matches!(bytes, [0x78, 0x01 | 0x5e | 0x9c | 0xda, ..]) && !is_text(&bytes[2..])
}

/// Whether the first bytes are those of a text in ASCII.
fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().take(512).all(|byte| byte.is_ascii() && !is_control(*byte))
}

fn is_control(byte: u8) -> bool {
    byte.is_ascii_control() && !b"\t\n\r\x0c".contains(&byte)
}

/// The number of bytes that are looked at to recognize a text.
pub(crate) const TEXT: usize = 512;

/// The format of a text, or unknown if the bytes are not a text.
fn text(bytes: &[u8]) -> Format {
    let start = &bytes[..bytes.len().min(TEXT)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last character may be cut.
        Err(error) if error.error_len().is_none() && bytes.len() > start.len() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return Unknown,
    };
    if text.bytes().any(is_control) {
        return Unknown;
    }
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let begins = |with: &str| text.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    match () {
        () if begins("<!doctype html") || begins("<html") || begins("<head") => Html,
        () if begins("<?xml") && text.to_ascii_lowercase().contains("<html") => Html,
        () if begins("<svg") || (begins("<?xml") && text.contains("<svg")) => Svg,
        () if begins("<?xml") || begins("<Error>") => Xml,
        () if is_json(text) => Json,
        () => Text,
    }
}

/// Whether a text begins like an object or an array of JSON.
fn is_json(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(['{', '[']) else { return false };
    let first = rest.trim_start().chars().next();
    match text.as_bytes()[0] {
        b'{' => matches!(first, Some('"' | '}')),
        _ => first.is_some_and(|first| "\"{[]-tfn".contains(first) || first.is_ascii_digit()),
    }
}

/// Every format, with a file of it.
#[cfg(test)]
pub(crate) use tests::examples;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first block of a tar archive with a file of this name.
    fn tar_header(name: &str, has_signature: bool) -> Vec<u8> {
        let mut header = vec![0; 1024];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..136].copy_from_slice(b"00000000010\0");
        if has_signature {
            header[257..263].copy_from_slice(b"ustar\0");
        }
        header[148..156].fill(b' ');
        let sum: u32 = header[..512].iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        header
    }

    fn zip(name: &str) -> Vec<u8> {
        let length = u16::try_from(name.len()).unwrap().to_le_bytes();
        [b"PK\x03\x04".as_slice(), &[0; 22], &length, &[0; 2], name.as_bytes(), b"data"].concat()
    }

    fn behind(count: usize, bytes: &[u8]) -> Vec<u8> {
        [vec![0; count], bytes.to_vec()].concat()
    }

    /// Every format, with a file of it.
    pub(crate) fn examples() -> Vec<(Format, Vec<u8>)> {
        let onnx = b"\x08\x0a\x12\x07pytorch\x1a\x062.13.0:\xc8\x01\x0a\x10".to_vec();
        let mut pax = tar_header("././@PaxHeader", true);
        pax[156] = b'x';
        let safetensors = b"\x40\0\0\0\0\0\0\0{\"x\":{\"dtype\":\"F32\"".to_vec();
        vec![
            (Empty, vec![]),
            (LfsPointer, b"version https://git-lfs.github.com/spec/v1\noid sha256:00".to_vec()),
            (Html, b"\n<!DOCTYPE html><html>".to_vec()),
            (Html, b"<?xml version=\"1.0\"?><!DOCTYPE html><html>".to_vec()),
            (Xml, b"<?xml version=\"1.0\"?><Error><Code>AccessDenied".to_vec()),
            (Json, b"{\"error\": \"not found\"}".to_vec()),
            (Json, b"[1, 2]".to_vec()),
            (Utf16, b"\xff\xfea\0b\0".to_vec()),
            (Text, b"Entry not found".to_vec()),
            (Text, "ü".repeat(400).into_bytes()),
            (Safetensors, safetensors),
            (TorchSave, zip("archive/data.pkl")),
            (TorchSaveLegacy, [b"\x80\x02", LEGACY, b"."].concat()),
            (TorchSaveLegacy, [b"\x80\x04\x95\x0d\0\0\0\0\0\0\0", LEGACY, b"."].concat()),
            (TorchTar, tar_header("sys_info", true)),
            (TorchTar, tar_header("pickle", false)),
            (TorchTar, [pax, tar_header("sys_info", true)].concat()),
            (TorchScript, zip("m/code/__torch__.py")),
            (TorchExport, zip("m/archive_format")),
            (Pickle, b"\x80\x04\x95\x10\0\0\0\0\0\0\0}".to_vec()),
            (Pickle, b"\x80\x02}q\0.".to_vec()),
            (Pickle, b"(dp0\nS'x'\n".to_vec()),
            (Hdf5, b"\x89HDF\r\n\x1a\n\0\0".to_vec()),
            (Hdf5, behind(512, b"\x89HDF\r\n\x1a\n")),
            (Keras, zip("model.weights.h5")),
            (Gguf, b"GGUF\x03\0\0\0".to_vec()),
            (Onnx, onnx),
            (TfLite, b"\x1c\0\0\0TFL3".to_vec()),
            (MessagePack, b"\x82\xa4step\x03\xa6params\x81".to_vec()),
            (MessagePack, b"\x81\xa6params\x82\xa1w\xc7".to_vec()),
            (Npy, b"\x93NUMPY\x01\0".to_vec()),
            (Npz, zip("weight.npy")),
            (Matlab, b"MATLAB 5.0 MAT-file, Platform".to_vec()),
            (Parquet, b"PAR1\x15\x04".to_vec()),
            (Arrow, b"ARROW1\0\0".to_vec()),
            (Orc, b"ORC\x08\x03".to_vec()),
            (Avro, b"Obj\x01\x04".to_vec()),
            (Sqlite, b"SQLite format 3\0\x10".to_vec()),
            (Zip, zip("README")),
            (Tar, tar_header("weights.pt", true)),
            (Tar, tar_header("weights.pt", false)),
            (Gzip, b"\x1f\x8b\x08\0\0\0\0\0\x02\xff\x4b".to_vec()),
            (Zstd, b"\x28\xb5\x2f\xfd\x04".to_vec()),
            (Xz, b"\xfd7zXZ\0\0\x04".to_vec()),
            (Bzip2, b"BZh91AY&SY\x8a\x01".to_vec()),
            (Lz4, b"\x04\x22\x4d\x18\x64".to_vec()),
            (Zlib, b"\x78\x5e\xed\x00".to_vec()),
            (SevenZip, b"7z\xbc\xaf\x27\x1c\0\x04".to_vec()),
            (Rar, b"Rar!\x1a\x07\x01\0".to_vec()),
            (Png, b"\x89PNG\r\n\x1a\n\0".to_vec()),
            (Jpeg, b"\xff\xd8\xff\xe0".to_vec()),
            (Gif, b"GIF89a\x01".to_vec()),
            (WebP, b"RIFF\x24\0\0\0WEBPVP8 ".to_vec()),
            (Heif, b"\0\0\0\x24ftypheic\0\0\0\0mif1".to_vec()),
            (Avif, b"\0\0\0\x20ftypavif\0\0\0\0avif".to_vec()),
            (Svg, b"<svg xmlns=\"http://www.w3.org/2000/svg\">".to_vec()),
            (Svg, b"<?xml version=\"1.0\"?>\n<svg xmlns=".to_vec()),
            (Wave, b"RIFF\x24\0\0\0WAVEfmt ".to_vec()),
            (Pdf, b"%PDF-1.7\n".to_vec()),
            (Program, b"\x7fELF\x02\x01".to_vec()),
            (Unknown, vec![0, 1, 2, 3]),
            (Unknown, vec![7]),
        ]
    }

    #[test]
    fn every_format_is_recognized_and_says_what_to_do() {
        let examples = examples();
        // `Unknown` is the last of the formats.
        for format in 0..=Unknown as usize {
            assert!(
                examples.iter().any(|(example, _)| *example as usize == format),
                "{format} has no example"
            );
        }
        for (format, bytes) in &examples {
            assert_eq!(Format::of(bytes), *format, "{}", String::from_utf8_lossy(bytes));
            let text = unexpected(bytes, *format, "a test", |_| "try again");
            assert!(text.starts_with("expected a test, but the file is "), "{text}");
            assert!(!text.chars().any(char::is_control), "{text:?}");
        }
        let text = unexpected(b"Entry not found", Text, "a test", |_| "try again");
        assert!(text.contains("a text file that begins with \"Entry not found\""), "{text}");
    }

    #[test]
    fn a_truncated_file_is_recognized_as_itself_or_not_at_all() {
        for (format, bytes) in examples() {
            for length in 1..bytes.len() {
                let found = Format::of(&bytes[..length]);
                // What is left of a file can be a text or a more general format.
                let is_part = matches!(
                    (format, found),
                    (_, Unknown | Text | Utf16 | Zip)
                        | (Html | Svg, Xml)
                        | (TorchSaveLegacy, Pickle)
                        | (TorchTar, Tar)
                );
                assert!(found == format || is_part, "{format:?} of {length} bytes: {found:?}");
            }
        }
    }

    #[test]
    fn texts_and_numbers_are_not_mistaken_for_other_formats() {
        let texts = [
            "x^2 + 1",
            "BZhello",
            "ORCHID",
            "x,y\n1,2\n",
            "[section]\nkey = 1",
            "{x}",
            "RIFF    WEBP",
            "GGUF",
        ];
        for text in texts {
            assert!(matches!(Format::of(text.as_bytes()), Text), "{text}: {:?}", Format::of(text.as_bytes()));
        }
        // Numbers as bytes: none of the formats with a heuristic may be found in them.
        for seed in 0..2000_u64 {
            let numbers = (0..64).flat_map(|n| {
                ((seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) ^ (n * 0x1_0001)).to_le_bytes()
            });
            let bytes: Vec<u8> = numbers.collect();
            assert!(!matches!(Format::of(&bytes), Onnx | MessagePack | Tar | Safetensors), "{seed}");
        }
    }
}
