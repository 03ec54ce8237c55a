//! The circumstances of a run, which can make the same program compute different results.

use std::collections::BTreeMap;
use std::env::consts::{ARCH, OS};
use std::path::Path;

use tch::Device;

use crate::io::files::read_text;
use crate::libtorch;

/// Returns the circumstances by name, for a task on this device.
pub(crate) fn circumstances(device: Device) -> BTreeMap<String, String> {
    let circumstances = [
        ("compiler", env!("TRAINER_RUSTC").to_owned()),
        ("device", format!("{device:?}")),
        ("kernels", libtorch::cpu_capability()),
        ("libtorch", libtorch::version()),
        ("processor", processor()),
        ("threads", tch::get_num_threads().to_string()),
    ];
    circumstances.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Returns the name of the processor. Libraries that libtorch uses choose their kernels based on
/// the processor. The name can be read only on Linux, and only on some architectures; elsewhere,
/// returns the architecture and the operating system.
fn processor() -> String {
    let described = read_text(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let name = described.lines().find_map(|line| {
        let (key, name) = line.split_once(':')?;
        (key.trim() == "model name").then(|| name.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("{ARCH} {OS}"))
}
