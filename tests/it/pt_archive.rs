//! Files of `torch.save`, written byte by byte.

/// Returns a zip archive without compression.
pub(crate) fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    let le = |number: usize, count: usize| (number as u64).to_le_bytes()[..count].to_vec();
    for (name, data) in entries {
        let start = bytes.len();
        let crc = crc32fast::hash(data) as usize;
        let sizes = [le(crc, 4), le(data.len(), 4), le(data.len(), 4)];
        let common = [vec![0; 8], sizes.concat(), le(name.len(), 2)];
        bytes.extend([b"PK\x03\x04\x14\x00".to_vec(), common.concat(), le(0, 2)].concat());
        bytes.extend(name.as_bytes());
        bytes.extend(*data);
        directory.extend([b"PK\x01\x02\x14\x00\x14\x00".to_vec(), common.concat()].concat());
        directory.extend([le(0, 2), le(0, 2), le(0, 2), le(0, 2), le(0, 4), le(start, 4)].concat());
        directory.extend(name.as_bytes());
    }
    let start = bytes.len();
    let count = entries.len();
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend([le(count, 2), le(count, 2), le(directory.len(), 4), le(start, 4), le(0, 2)].concat());
    bytes
}

/// Returns the pickle of `{"x": tensor}` with this storage and view.
pub(crate) fn pickle(class: &str, elements: &[u8], offset: &[u8], size: &[u8], stride: &[u8]) -> Vec<u8> {
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
