//! Downloading from the Hugging Face hub (feature `hub`).
//!
//! The answers of a server are checked before they are used: commits and hashes are hexadecimal
//! numbers, because they become names in the cache; redirects are few, never leave HTTPS, and never
//! carry the token to another host; and a file takes its place in the cache only if its length and
//! hash are those that the hub has announced.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use trainer::prelude::*;
use ureq::http::{Response, Uri, header};
use ureq::{Agent, Body};

use crate::files::{CONFIG, Files, WEIGHTS};

/// Returns the configuration and the weights of a repository on the hub, such as
/// `openai-community/gpt2`. They are downloaded unless they are in the cache, which is shared with
/// `huggingface_hub` in Python. See [`Hub`] for options.
///
/// ```no_run
/// use models::{Gpt2Config, hub};
///
/// let files = hub::fetch("openai-community/gpt2")?;
/// let config = Gpt2Config::from_json(&files.config)?;
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// # Errors
///
/// Returns an error that names the repository and the file if a file cannot be downloaded.
pub fn fetch(repository: &str) -> Result<Files> {
    Hub::new().fetch(repository)
}

/// Options for downloading from the hub.
///
/// They default to the environment variables `HF_ENDPOINT`, `HF_TOKEN` and `HF_HOME`. `HF_HOME` is
/// the folder that contains the cache and the token saved by `hf auth login`; it defaults to
/// `~/.cache/huggingface`.
#[derive(Clone)]
pub struct Hub {
    endpoint: Option<String>,
    cache: Option<PathBuf>,
    token: Option<String>,
    revision: String,
    progress: bool,
    max_bytes: u64,
    timeout: Duration,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Hub { endpoint, cache, revision, .. } = self; // the token is secret
        f.debug_struct("Hub")
            .field("endpoint", endpoint)
            .field("cache", cache)
            .field("revision", revision)
            .finish_non_exhaustive()
    }
}

impl Default for Hub {
    fn default() -> Self {
        Hub::new()
    }
}

impl Hub {
    /// Creates options from the environment.
    #[must_use]
    pub fn new() -> Self {
        let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        Hub {
            endpoint: None,
            cache: None,
            token,
            revision: "main".to_owned(),
            progress: true,
            max_bytes: 64 << 30,
            timeout: Duration::from_secs(6 * 3600),
        }
    }

    /// Sets the address of the hub or of a mirror, such as `https://huggingface.co`.
    #[must_use]
    pub fn endpoint(mut self, address: impl Into<String>) -> Self {
        self.endpoint = Some(address.into().trim_end_matches('/').to_owned());
        self
    }

    /// Sets the cache folder.
    #[must_use]
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = Some(folder.into());
        self
    }

    /// Sets the token for private or gated repositories. It is sent to the host of the hub only,
    /// and only over HTTPS or to this machine.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Sets the revision: a branch, a tag or a commit hash. Defaults to `main`.
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = revision.into();
        self
    }

    /// Whether the terminal shows the progress of a download. Defaults to `true`.
    #[must_use]
    pub fn progress(mut self, progress: bool) -> Self {
        self.progress = progress;
        self
    }

    /// Sets the maximum number of bytes of a file. Defaults to 64 GiB. A configuration may have at
    /// most 16 MiB.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets the time after which the download of a file ends with an error. Defaults to 6 hours. A
    /// server that sends nothing for a minute is an error too.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the configuration and the weights of a repository: `config.json`, and
    /// `model.safetensors` or else `pytorch_model.bin`, both of the same commit. Files in the cache
    /// are not downloaded again. An interrupted download is continued.
    ///
    /// # Errors
    ///
    /// Returns an error that names the repository and the file if a file cannot be downloaded, or
    /// if it differs from what the hub has announced.
    pub fn fetch(&self, repository: &str) -> Result<Files> {
        if repository.split('/').count() > 2 || !is_name(repository) || repository.contains("--") {
            return Err(Error::msg(format!(
                "`{repository}` is not the name of a repository on the hub: expected `owner/name`"
            )));
        }
        if !is_name(&self.revision) {
            return Err(Error::msg(format!(
                "`{}` is not a revision: expected a branch, a tag or a commit hash",
                self.revision
            )));
        }
        let endpoint = self.endpoint.clone().or_else(|| variable("HF_ENDPOINT"));
        let endpoint = endpoint.unwrap_or_else(|| "https://huggingface.co".to_owned());
        let folder = self.cache.clone().unwrap_or_else(|| home().join("hub"));
        let repo = Repo {
            hub: self,
            name: repository,
            origin: Origin::of(&endpoint).ok_or_else(|| {
                Error::msg(format!("`{endpoint}` is not the address of a hub: expected `https://…`"))
            })?,
            endpoint: endpoint.trim_end_matches('/'),
            folder: folder.join(format!("models--{}", repository.replace('/', "--"))),
            token: self.token.clone().or_else(|| {
                let token = fs::read_to_string(home().join("token")).ok()?;
                Some(token.trim().to_owned()).filter(|token| !token.is_empty())
            }),
        };
        if let Some(files) = repo.cached_commit().and_then(|commit| repo.cached(&commit)) {
            return Ok(files);
        }
        let (commit, config) =
            repo.get(CONFIG, &self.revision).map_err(|failed| self.failed(repository, CONFIG, failed))?;
        for name in WEIGHTS {
            match repo.get(name, &commit) {
                Ok((_, weights)) => return Ok(Files { config, weights }),
                Err(Failed::Status(404)) => {}
                Err(failed) => return Err(self.failed(repository, name, failed)),
            }
        }
        Err(Error::msg(format!(
            "`{repository}` on the hub has neither `{}` nor `{}` at `{}`: weights in several files are not supported",
            WEIGHTS[0], WEIGHTS[1], self.revision
        )))
    }

    /// Returns the error for a file that was not downloaded.
    fn failed(&self, repository: &str, file: &str, failed: Failed) -> Error {
        let reason = match failed {
            Failed::Status(status @ (401 | 403)) => format!(
                "the hub refuses access (HTTP {status}): check the name; if the repository is not public, accept its terms \
                 on its page, and set `HF_TOKEN` or run `hf auth login` (the token is sent over HTTPS only)"
            ),
            Failed::Status(404) => format!("there is no such file at `{}`: check the names", self.revision),
            Failed::Status(status) => format!("the hub answered with HTTP {status}: try again later"),
            Failed::Lies(what) => {
                format!(
                    "{what}: nothing was stored; check the address of the hub (`HF_ENDPOINT`), and try again"
                )
            }
            Failed::Here(what) => what,
            Failed::Network(what) => format!(
                "{what}: without a network, download the files elsewhere, and use their folder (`Files::in_folder`, or \
                 `--weights DIR` in an example)"
            ),
        };
        Error::msg(format!("cannot download `{file}` of `{repository}` from the hub: {reason}"))
    }
}

/// The maximum number of bytes of a configuration.
const MAX_CONFIG: u64 = 16 << 20;
/// The maximum number of redirects for one request.
const MAX_REDIRECTS: usize = 5;
/// The number of times that a request is made if the network fails.
const TRIES: u32 = 3;

/// Why a file was not downloaded.
#[derive(Debug)]
enum Failed {
    Status(u16),
    /// The server sent something that it must not send.
    Lies(String),
    /// The cache cannot be used.
    Here(String),
    Network(String),
}

impl From<ureq::Error> for Failed {
    fn from(error: ureq::Error) -> Self {
        Failed::Network(error.to_string())
    }
}

/// Whether a text is a name, or names separated by `/`, that can be parts of a path.
fn is_name(text: &str) -> bool {
    text.split('/').all(|part| {
        let is_plain = part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        is_plain && !part.is_empty() && !part.starts_with('.') && !part.contains("..")
    })
}

fn is_hexadecimal(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The folder of the cache and the token.
fn home() -> PathBuf {
    variable("HF_HOME")
        .map_or_else(|| std::env::home_dir().unwrap_or_default().join(".cache/huggingface"), PathBuf::from)
}

/// The scheme, host and port of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    is_https: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// `None` if the address is not one of HTTP, or has a user.
    fn of(address: &str) -> Option<Self> {
        let uri: Uri = address.parse().ok()?;
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Some(Origin { is_https, host: authority.host().to_ascii_lowercase(), port })
    }

    /// Whether the host is this machine, or another one that has no name.
    fn is_internal(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        host.parse::<std::net::IpAddr>().is_ok() || host == "localhost" || host.ends_with(".localhost")
    }

    fn is_loopback(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Whether this hub may redirect to another address: over HTTPS to any host with a name, and
    /// to its own host.
    fn may_redirect_to(&self, other: &Origin) -> bool {
        if other.host == self.host {
            other.is_https || !self.is_https
        } else {
            other.is_https && !other.is_internal()
        }
    }
}

/// What the hub says about a file.
struct Announced {
    commit: String,
    /// The SHA-256 of the file or, if it has 40 digits, the SHA-1 of git.
    hash: String,
    bytes: Option<u64>,
}

/// A repository on the hub, and its folder in the cache.
struct Repo<'a> {
    hub: &'a Hub,
    name: &'a str,
    endpoint: &'a str,
    origin: Origin,
    folder: PathBuf,
    token: Option<String>,
}

impl Repo<'_> {
    /// The commit of the revision when it was last downloaded.
    fn cached_commit(&self) -> Option<String> {
        let revision = &self.hub.revision;
        let commit = fs::read_to_string(self.folder.join("refs").join(revision));
        let commit = commit.map_or_else(|_| revision.clone(), |commit| commit.trim().to_owned());
        is_hexadecimal(&commit, 40).then_some(commit)
    }

    fn snapshot(&self, commit: &str, file: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit).join(file)
    }

    /// The files of a commit, if all are in the cache.
    fn cached(&self, commit: &str) -> Option<Files> {
        let found = |file: &str| Some(self.snapshot(commit, file)).filter(|path| path.is_file());
        Some(Files { config: found(CONFIG)?, weights: WEIGHTS.into_iter().find_map(found)? })
    }

    /// Downloads a file unless it is in the cache. Returns its commit and its path.
    fn get(&self, file: &str, revision: &str) -> std::result::Result<(String, PathBuf), Failed> {
        let deadline = Instant::now() + self.hub.timeout;
        let revision = revision.replace('/', "%2F");
        let address = format!("{}/{}/resolve/{revision}/{file}", self.endpoint, self.name);
        let announced = retry(deadline, || self.announced(&address, deadline))?;
        let limit = if file == CONFIG { self.hub.max_bytes.min(MAX_CONFIG) } else { self.hub.max_bytes };
        if let Some(bytes) = announced.bytes.filter(|bytes| *bytes > limit) {
            return Err(Failed::Here(format!(
                "it has {bytes} bytes, more than the limit of {limit}: raise it with `.max_bytes(…)` if that is right"
            )));
        }
        let blob = self.folder.join("blobs").join(&announced.hash);
        let has = |bytes: u64| announced.bytes.is_none_or(|expected| expected == bytes);
        if !fs::metadata(&blob).is_ok_and(|found| found.is_file() && has(found.len())) {
            self.download(&address, &announced, &blob, limit, deadline)?;
        }
        let path = self.snapshot(&announced.commit, file);
        self.publish(&announced, &path)
            .map_err(|error| Failed::Here(format!("{}: {error}", path.display())))?;
        Ok((announced.commit, path))
    }

    /// Asks the hub about a file, without its content. Follows redirects within the hub only: the
    /// answer that leads elsewhere has what is needed.
    fn announced(&self, address: &str, deadline: Instant) -> std::result::Result<Announced, Failed> {
        let mut address = address.to_owned();
        let (mut commit, mut hash, mut bytes) = (None, None, None);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(true, &address, 0, deadline)?;
            let text = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.trim().to_owned());
            commit = commit.or_else(|| text("x-repo-commit"));
            hash = hash.or_else(|| text("x-linked-etag"));
            bytes = bytes.or_else(|| text("x-linked-size")?.parse().ok());
            let next = self.redirect(&response, &address)?;
            if let Some(next) = next.filter(|next| Origin::of(next).as_ref() == Some(&self.origin)) {
                address = next;
                continue;
            }
            if response.status().is_success() {
                hash = hash.or_else(|| text("etag"));
                bytes = bytes.or_else(|| text("content-length")?.parse().ok());
            }
            let hash = hash.unwrap_or_default();
            let hash = hash.strip_prefix("W/").unwrap_or(&hash).trim_matches('"');
            let commit = commit.unwrap_or_default();
            if !is_hexadecimal(&commit, 40) {
                return Err(Failed::Lies(format!(
                    "the server sent the commit {commit:?}, expected 40 hexadecimal digits"
                )));
            }
            if !is_hexadecimal(hash, 40) && !is_hexadecimal(hash, 64) {
                return Err(Failed::Lies(format!(
                    "the server sent the hash {hash:?}, expected 40 or 64 hexadecimal digits"
                )));
            }
            return Ok(Announced { commit, hash: hash.to_owned(), bytes });
        }
        Err(too_many())
    }

    /// Makes one request. Returns an error for all answers but success and redirects.
    fn request(
        &self,
        is_head: bool,
        address: &str,
        start: u64,
        deadline: Instant,
    ) -> std::result::Result<Response<Body>, Failed> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(out_of_time());
        }
        let minute = left.min(Duration::from_secs(60));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(left))
            .timeout_connect(Some(minute))
            .timeout_recv_response(Some(minute))
            .timeout_per_read(Some(minute));
        let agent: Agent = config.build().into();
        let mut request = if is_head { agent.head(address) } else { agent.get(address) };
        request = request.header(header::ACCEPT_ENCODING, "identity");
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        let is_safe = self.origin.is_https || self.origin.is_loopback();
        let is_hub = Origin::of(address).as_ref() == Some(&self.origin);
        if let Some(token) = self.token.as_ref().filter(|_| is_safe && is_hub) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = request.call()?;
        match response.status().as_u16() {
            200..=399 => Ok(response),
            status => Err(Failed::Status(status)),
        }
    }

    /// Returns the address to which an answer redirects, if it does.
    fn redirect(&self, response: &Response<Body>, from: &str) -> std::result::Result<Option<String>, Failed> {
        if !response.status().is_redirection() {
            return Ok(None);
        }
        let location = response.headers().get(header::LOCATION).and_then(|location| location.to_str().ok());
        let location = location.unwrap_or_default();
        let next = match location.strip_prefix('/') {
            Some(path) if !path.starts_with('/') => {
                let end = from.find("://").map_or(0, |at| at + 3);
                let end = from[end..].find('/').map_or(from.len(), |at| end + at);
                format!("{}{location}", &from[..end])
            }
            _ => location.to_owned(),
        };
        match Origin::of(&next) {
            Some(origin) if self.origin.may_redirect_to(&origin) => Ok(Some(next)),
            _ => Err(Failed::Lies(format!(
                "the server redirects to {location:?}, expected an address of `https://` at a host with a name"
            ))),
        }
    }

    /// Downloads a file into the cache, where it takes its place if its length and hash are right.
    fn download(
        &self,
        address: &str,
        announced: &Announced,
        blob: &Path,
        limit: u64,
        deadline: Instant,
    ) -> std::result::Result<(), Failed> {
        let partial = blob.with_extension("trainer-part");
        let here = |error: io::Error| Failed::Here(format!("{}: {error}", partial.display()));
        fs::create_dir_all(partial.parent().unwrap_or(&partial)).map_err(here)?;
        if fs::symlink_metadata(&partial).is_ok_and(|found| !found.is_file()) {
            return Err(Failed::Here(format!("{} is not a file: remove it", partial.display())));
        }
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(&partial).map_err(here)?;
        if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            return Err(Failed::Here(
                "another process is downloading it: fetch it in one process first".to_owned(),
            ));
        }
        retry(deadline, || self.receive(address, announced, &mut file, limit, deadline))?;
        let bytes = file.metadata().map_err(here)?.len();
        let remove = |what: String| {
            let _ = fs::remove_file(&partial);
            Failed::Lies(what)
        };
        if let Some(expected) = announced.bytes.filter(|expected| *expected != bytes) {
            return Err(remove(format!("the server sent {bytes} bytes, but had announced {expected}")));
        }
        let found = hash(&mut file, announced.hash.len()).map_err(here)?;
        if found != announced.hash {
            return Err(remove(format!("its hash is {found}, but the hub had announced {}", announced.hash)));
        }
        file.sync_all().and_then(|()| fs::rename(&partial, blob)).map_err(here)
    }

    /// Receives what a file lacks.
    fn receive(
        &self,
        address: &str,
        announced: &Announced,
        file: &mut File,
        limit: u64,
        deadline: Instant,
    ) -> std::result::Result<(), Failed> {
        let here = |error: io::Error| Failed::Here(format!("the cache: {error}"));
        let limit = announced.bytes.unwrap_or(limit);
        let mut start = file.seek(SeekFrom::End(0)).map_err(here)?;
        if announced.bytes == Some(start) {
            return Ok(());
        }
        if start > limit || announced.bytes.is_none() {
            start = 0;
        }
        let mut address = address.to_owned();
        let mut response = self.request(false, &address, start, deadline)?;
        for nth in 0.. {
            let Some(next) = self.redirect(&response, &address)? else { break };
            if nth == MAX_REDIRECTS {
                return Err(too_many());
            }
            address = next;
            response = self.request(false, &address, start, deadline)?;
        }
        let range = response.headers().get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let continues = response.status() == 206
            && range.is_some_and(|range| range.starts_with(&format!("bytes {start}-")));
        if !continues {
            start = 0;
        }
        file.set_len(start).and_then(|()| file.seek(SeekFrom::Start(start))).map_err(here)?;
        let bar = if self.hub.progress { ProgressBar::new(limit) } else { ProgressBar::hidden() };
        // One byte more than announced is read, so that a longer file is noticed.
        let mut body =
            response.into_body().into_with_config().limit(u64::MAX).reader().take(limit - start + 1);
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = body.read(&mut buffer).map_err(|error| {
                let of = announced.bytes.map_or_else(String::new, |bytes| format!(" of {bytes}"));
                Failed::Network(format!("the connection ended after {start}{of} bytes: {error}"))
            })?;
            if read == 0 {
                break;
            }
            file.write_all(&buffer[..read]).map_err(here)?;
            start += read as u64;
            bar.set_position(start);
        }
        bar.finish_and_clear();
        match announced.bytes {
            _ if start > limit => {
                file.set_len(0).map_err(here)?;
                Err(Failed::Lies(format!("the server sends more than {limit} bytes")))
            }
            Some(expected) if start < expected => {
                Err(Failed::Network(format!("the connection ended after {start} of {expected} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// Links a file of the cache under its name, and notes the commit of the revision.
    fn publish(&self, announced: &Announced, path: &Path) -> io::Result<()> {
        if !path.is_file() {
            fs::create_dir_all(path.parent().unwrap_or(path))?;
            if fs::symlink_metadata(path).is_ok() {
                fs::remove_file(path)?; // a link to a file that is gone
            }
            let target = Path::new("../../blobs").join(&announced.hash);
            #[cfg(unix)]
            std::os::unix::fs::symlink(target, path)?;
            #[cfg(not(unix))]
            fs::copy(path.parent().unwrap_or(path).join(target), path).map(drop)?;
        }
        if self.hub.revision == announced.commit {
            return Ok(());
        }
        let reference = self.folder.join("refs").join(&self.hub.revision);
        fs::create_dir_all(reference.parent().unwrap_or(&reference))?;
        let new = reference.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, &announced.commit)?;
        fs::rename(&new, &reference)
    }
}

/// Makes a request again if the network or the server failed.
fn retry<T>(
    deadline: Instant,
    mut request: impl FnMut() -> std::result::Result<T, Failed>,
) -> std::result::Result<T, Failed> {
    for nth in 1.. {
        match request() {
            Err(Failed::Network(_) | Failed::Status(429 | 500..=599))
                if nth < TRIES && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(100 << nth));
            }
            result => return result,
        }
    }
    Err(out_of_time())
}

/// Returns the hash of a file: SHA-256 or, with 40 digits, that of git.
fn hash(file: &mut File, digits: usize) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let (mut sha1, mut sha256) = (Sha1::new(), Sha256::new());
    sha1.update(format!("blob {}\0", file.metadata()?.len()));
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read if digits == 40 => sha1.update(&buffer[..read]),
            read => sha256.update(&buffer[..read]),
        }
    }
    let digest = if digits == 40 { sha1.finalize().to_vec() } else { sha256.finalize().to_vec() };
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn too_many() -> Failed {
    Failed::Lies(format!("the server redirects more than {MAX_REDIRECTS} times"))
}

fn out_of_time() -> Failed {
    Failed::Network("the download took longer than allowed: raise it with `.timeout(…)`".to_owned())
}

#[cfg(test)]
#[path = "tests/hub.rs"]
mod tests;
