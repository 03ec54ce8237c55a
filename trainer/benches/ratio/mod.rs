//! Times candidates against a baseline in interleaved rounds, so that noise affects all of them
//! alike.

#![allow(clippy::disallowed_macros)]

mod record;

use std::hint::black_box;
use std::time::Instant;

/// A named function to time.
pub(crate) type Case<'a> = (&'a str, Box<dyn FnMut() + 'a>);

/// The number of measured rounds. The reported numbers are medians over them.
const ROUNDS: usize = 31;

/// Prints, for each case, the nanoseconds per repetition and the ratio to the first case, also as a
/// JSON line if that is [requested](record::record).
///
/// Each measurement makes `calls` calls, each of which repeats the measured work `inner` times. The
/// ratio is the median of the ratios within each round.
pub(crate) fn compare(title: &str, calls: u32, inner: u32, cases: &mut [Case<'_>]) {
    let mut times = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for round in 0..=ROUNDS {
        for (nth, (_, run)) in cases.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..calls {
                black_box(&mut *run)();
            }
            let nanoseconds = start.elapsed().as_secs_f64() * 1e9 / f64::from(calls * inner);
            if round > 0 {
                times[nth].push(nanoseconds); // round 0 warms up
            }
        }
    }
    println!("\n{title}");
    for ((name, _), own) in cases.iter().zip(&times) {
        let ratios = own.iter().zip(&times[0]).map(|(own, base)| own / base).collect();
        let (nanoseconds, ratio) = (median(own.clone()), median(ratios));
        println!("  {name:<44} {nanoseconds:>12.1} ns  {ratio:>7.3} ×");
        record::record(title, name, nanoseconds, ratio);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
