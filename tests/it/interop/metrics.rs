//! Metrics compared with those of torchmetrics on random cases.

use super::run_script;
use crate::metrics::assert_equal_to_torchmetrics;
use crate::support::scratch;

#[test]
#[ignore = "run by `make interop`"]
fn metrics_match_torchmetrics_on_random_cases() {
    let folder = scratch("interop-metrics");
    std::fs::create_dir_all(&folder).unwrap();
    run_script("metrics.py", &folder);
    let each = assert_equal_to_torchmetrics(&folder.join("metrics.json"));
    println!("{each:?}");
    assert!(each.len() >= 25 && each.values().all(|count| *count >= 200), "{each:?}");
}
