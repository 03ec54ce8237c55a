//! The page: its head, and its sections in order.

use std::fmt::Write;
use std::time::SystemTime;

use super::escape::Text;
use super::matrix::matrices_of;
use super::{Report, START, sections};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// The SHA-256 hash of `SCRIPT` in base64. A browser runs only the script with this hash. The unit
/// test prints the hash.
const SCRIPT_HASH: &str = "ELVMAlKTGch5WeEkxdqQ09bSweJQ/6+J7l5Fjq21ZFo=";

/// Returns the HTML of the page.
pub(super) fn page(report: &Report, now: SystemTime) -> String {
    let matrices: Vec<_> = report.runs.iter().map(|run| matrices_of(&run.points)).collect();
    let mut out = String::from(START);
    let title = match &report.runs[..] {
        [] => "No run".to_owned(),
        [run] => run.name.clone(),
        runs => format!("{} runs", runs.len()),
    };
    let _ = write!(
        out,
        "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; \
         script-src 'sha256-{SCRIPT_HASH}'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{STYLE}",
        Text(&title)
    );
    for run in 0..report.runs.len() {
        let _ = writeln!(out, ":root:has(#r{run}:not(:checked)) .r{run}{{display:none}}");
    }
    let _ = write!(out, "</style>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n", Text(&title));
    sections::notes(&mut out, &report.notes());
    sections::overview(&mut out, report, now);
    sections::errors_and_warnings(&mut out, report);
    sections::metrics(&mut out, report, &matrices);
    sections::curves(&mut out, report, &matrices);
    sections::matrices(&mut out, report, &matrices);
    sections::images(&mut out, report, &matrices);
    sections::texts(&mut out, report);
    sections::profiles(&mut out, report);
    sections::data_and_settings(&mut out, report);
    sections::hooks(&mut out, report);
    sections::environment(&mut out, report);
    sections::absent(&mut out, report, &matrices);
    let _ = write!(out, "</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::super::base64;
    use super::{SCRIPT, SCRIPT_HASH};

    #[test]
    fn the_content_security_policy_allows_the_script_of_the_report() {
        assert_eq!(base64(&Sha256::digest(SCRIPT)), SCRIPT_HASH, "write the left one into SCRIPT_HASH");
        assert!(!SCRIPT.contains("</"), "the script would end there");
    }
}
