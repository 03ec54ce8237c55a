//! Downloading from the Hugging Face hub (feature `hub`).

use std::path::PathBuf;

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use trainer::prelude::*;

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
        Hub { endpoint: None, cache: None, token, revision: "main".to_owned(), progress: true }
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

    /// Sets the token for private or gated repositories.
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

    /// Returns the configuration and the weights of a repository: `config.json`, and
    /// `model.safetensors` or else `pytorch_model.bin`. Files in the cache are not downloaded
    /// again.
    ///
    /// # Errors
    ///
    /// Returns an error that names the repository and the file if a file cannot be downloaded.
    pub fn fetch(&self, repository: &str) -> Result<Files> {
        let is_part = |part: &str| {
            let mut characters = part.chars();
            !part.starts_with('.')
                && !part.is_empty()
                && characters.all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        if repository.split('/').count() > 2 || !repository.split('/').all(is_part) {
            return Err(Error::msg(format!(
                "`{repository}` is not the name of a repository on the hub: expected `owner/name`"
            )));
        }
        let repo = self.repo(repository).map_err(|error| self.failed(repository, CONFIG, &error))?;
        let get = |file: &str| repo.get(file);
        let config = get(CONFIG).map_err(|error| self.failed(repository, CONFIG, &error))?;
        for name in WEIGHTS {
            match get(name) {
                Ok(weights) => return Ok(Files { config, weights }),
                Err(error) if status(&error) == Some(404) => {}
                Err(error) => return Err(self.failed(repository, name, &error)),
            }
        }
        Err(Error::msg(format!(
            "`{repository}` on the hub has neither `{}` nor `{}` at `{}`: weights in several files are not supported",
            WEIGHTS[0], WEIGHTS[1], self.revision
        )))
    }

    fn repo(&self, repository: &str) -> std::result::Result<ApiRepo, ApiError> {
        let mut builder = ApiBuilder::from_env().with_progress(self.progress).with_retries(3);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if let Some(cache) = &self.cache {
            builder = builder.with_cache_dir(cache.clone());
        }
        if let Some(token) = &self.token {
            builder = builder.with_token(Some(token.clone()));
        }
        let repo = Repo::with_revision(repository.to_owned(), RepoType::Model, self.revision.clone());
        Ok(builder.build()?.repo(repo))
    }

    /// Returns the error for a file that was not downloaded.
    fn failed(&self, repository: &str, file: &str, error: &ApiError) -> Error {
        let reason = match (error, status(error)) {
            (_, Some(status @ (401 | 403))) => format!(
                "the hub refuses access (HTTP {status}): check the name; if the repository is not public, accept its terms \
                 on its page, and set `HF_TOKEN` or run `hf auth login`"
            ),
            (_, Some(404)) => format!("there is no such file at `{}`: check the names", self.revision),
            (ApiError::LockAcquisition(_), _) => {
                "another process is downloading it: fetch it in one process first".to_owned()
            }
            (_, Some(status)) => format!("the hub answered with HTTP {status}: try again later"),
            _ => format!(
                "{error}: without a network, download the files elsewhere, and use their folder (`Files::in_folder`, or \
                 `--weights DIR` in an example)"
            ),
        };
        Error::msg(format!("cannot download `{file}` of `{repository}` from the hub: {reason}"))
    }
}

/// Returns the status of the hub's response, if that caused the error.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        ApiError::TooManyRetries(error) => status(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, Mutex};
    use std::thread;

    use super::*;

    const COMMIT: &str = "607a30d783dfa663caf39e06633721c8d4cfcd7e";

    /// A local hub. It redirects requests for weights to a different address, like the real hub.
    #[derive(Default)]
    struct Server {
        /// The contents of files by their path: `owner/name/resolve/main/config.json`.
        files: BTreeMap<String, Vec<u8>>,
        /// The token that requests must have, if any.
        token: Option<&'static str>,
        /// The number of downloads that are cut off half-way.
        cut: Mutex<usize>,
        /// The status of all responses, if set.
        fails: Option<u16>,
        /// The requests, each as its path and range.
        requests: Mutex<Vec<String>>,
    }

    impl Server {
        fn with(files: &[(&str, &[u8])]) -> Self {
            let files = files.iter().map(|(path, content)| ((*path).to_owned(), content.to_vec())).collect();
            Server { files, ..Server::default() }
        }

        /// Serves until the test process ends.
        fn start(self) -> (Arc<Server>, String) {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            let server = Arc::new(self);
            let shared = Arc::clone(&server);
            let own = address.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let _ = shared.answer(&stream.unwrap(), &own);
                }
            });
            (server, address)
        }

        fn answer(&self, mut stream: &TcpStream, address: &str) -> std::io::Result<()> {
            let mut lines = Vec::new();
            for line in BufReader::new(stream).lines() {
                let line = line?;
                if line.is_empty() {
                    break;
                }
                lines.push(line);
            }
            let path = lines[0].split(' ').nth(1).unwrap().trim_start_matches('/').to_owned();
            let header = |name: &str| {
                let found = lines.iter().find(|line| line.to_lowercase().starts_with(name));
                found.map(|line| line[name.len() + 1..].trim().to_owned())
            };
            let range = header("range").unwrap_or_default();
            self.requests.lock().unwrap().push(format!("{path} {range}"));
            if let Some(code) = self.fails {
                return refuse(stream, code);
            }
            if self.token.is_some_and(|token| header("authorization") != Some(format!("Bearer {token}"))) {
                return refuse(stream, 401);
            }
            let (is_stored, stored) = match path.strip_prefix("storage/") {
                Some(path) => (true, path),
                None => (false, &path[..]),
            };
            let Some(content) = self.files.get(stored) else { return refuse(stream, 404) };
            let etag = format!("etag-{}", stored.replace('/', "-"));
            if stored.ends_with("model.safetensors") && !is_stored {
                return write!(
                    stream,
                    "HTTP/1.1 302 Found\r\nLocation: {address}/storage/{path}\r\nX-Repo-Commit: {COMMIT}\r\n\
                     X-Linked-Etag: \"{etag}\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
            }
            let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let start: usize = start.parse().unwrap();
            let end = end.parse().map_or(content.len(), |last: usize| last + 1);
            write!(
                stream,
                "HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{}/{}\r\nX-Repo-Commit: {COMMIT}\r\n\
                 ETag: \"{etag}\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                end - 1,
                content.len(),
                end - start
            )?;
            let mut end = end;
            let mut cut = self.cut.lock().unwrap();
            if end - start > 1 && *cut > 0 {
                *cut -= 1;
                end = start + (end - start) / 2;
            }
            stream.write_all(&content[start..end])
        }

        fn requests(&self) -> Vec<String> {
            std::mem::take(&mut *self.requests.lock().unwrap())
        }
    }

    fn refuse(mut stream: &TcpStream, status: u16) -> std::io::Result<()> {
        write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    }

    fn hub(address: &str, cache: &std::path::Path) -> Hub {
        Hub::new().endpoint(address).cache(cache).progress(false)
    }

    const CONFIG_PATH: &str = "openai-community/gpt2/resolve/main/config.json";
    const WEIGHTS_PATH: &str = "openai-community/gpt2/resolve/main/model.safetensors";

    #[test]
    fn files_are_downloaded_once() {
        let weights: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let (server, address) = Server::with(&[(CONFIG_PATH, b"{}"), (WEIGHTS_PATH, &weights)]).start();
        let cache = tempfile::tempdir().unwrap();
        let files = hub(&address, cache.path()).fetch("openai-community/gpt2").unwrap();
        assert_eq!(std::fs::read(&files.config).unwrap(), b"{}");
        assert_eq!(std::fs::read(&files.weights).unwrap(), weights);
        assert!(files.weights.ends_with(format!("snapshots/{COMMIT}/model.safetensors")), "{files:?}");
        assert_eq!(
            server.requests(),
            [
                format!("{CONFIG_PATH} bytes=0-0"),
                format!("{CONFIG_PATH} bytes=0-"),
                format!("{WEIGHTS_PATH} bytes=0-0"),
                format!("storage/{WEIGHTS_PATH} bytes=0-0"),
                format!("{WEIGHTS_PATH} bytes=0-"),
                format!("storage/{WEIGHTS_PATH} bytes=0-"),
            ]
        );
        assert_eq!(hub(&address, cache.path()).fetch("openai-community/gpt2").unwrap(), files);
        assert_eq!(server.requests(), [""; 0], "the second time, from the cache");
        assert_eq!(Files::in_folder(files.config.parent().unwrap()).unwrap(), files);
    }

    #[test]
    fn an_interrupted_download_is_continued() {
        let weights: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let server = Server {
            cut: Mutex::new(2),
            ..Server::with(&[
                ("m/resolve/v1/config.json", b"{}"),
                ("m/resolve/v1/model.safetensors", &weights),
            ])
        };
        let (server, address) = server.start();
        let cache = tempfile::tempdir().unwrap();
        let files = hub(&address, cache.path()).revision("v1").fetch("m").unwrap();
        assert_eq!(std::fs::read(&files.weights).unwrap(), weights);
        assert!(
            server.requests().contains(&"storage/m/resolve/v1/model.safetensors bytes=50000-".to_owned())
        );
    }

    #[test]
    fn weights_saved_by_torch_save_are_downloaded_from_older_repositories() {
        let (_server, address) = Server::with(&[
            ("m/resolve/main/config.json", b"{}"),
            ("m/resolve/main/pytorch_model.bin", b"PK"),
        ])
        .start();
        let cache = tempfile::tempdir().unwrap();
        let files = hub(&address, cache.path()).fetch("m").unwrap();
        assert_eq!(std::fs::read(&files.weights).unwrap(), b"PK");
    }

    #[test]
    fn a_token_gives_access_to_a_restricted_repository() {
        let server = Server {
            token: Some("hf_secret"),
            ..Server::with(&[
                ("m/resolve/main/config.json", b"{}"),
                ("m/resolve/main/model.safetensors", b"x"),
            ])
        };
        let (_server, address) = server.start();
        let cache = tempfile::tempdir().unwrap();
        let hub = hub(&address, cache.path());
        assert_eq!(
            hub.clone().token("another").fetch("m").unwrap_err().to_string(),
            "cannot download `config.json` of `m` from the hub: the hub refuses access (HTTP 401): check the name; if the \
             repository is not public, accept its terms on its page, and set `HF_TOKEN` or run `hf auth login`"
        );
        let hub = hub.token("hf_secret");
        assert!(!format!("{hub:?}").contains("secret"));
        assert_eq!(std::fs::read(hub.fetch("m").unwrap().weights).unwrap(), b"x");
    }

    #[test]
    fn errors_name_the_repository_the_file_and_a_remedy() {
        let cache = tempfile::tempdir().unwrap();
        let message = |address: &str, repository: &str| {
            hub(address, cache.path()).fetch(repository).unwrap_err().to_string()
        };
        let (_server, address) = Server::with(&[("m/resolve/main/config.json", b"{}")]).start();
        assert_eq!(
            message(&address, "other/m"),
            "cannot download `config.json` of `other/m` from the hub: there is no such file at `main`: check the names"
        );
        assert_eq!(
            message(&address, "m"),
            "`m` on the hub has neither `model.safetensors` nor `pytorch_model.bin` at `main`: weights in several files \
             are not supported"
        );
        let (_server, address) = Server { fails: Some(503), ..Server::default() }.start();
        assert_eq!(
            message(&address, "a/b"),
            "cannot download `config.json` of `a/b` from the hub: the hub answered with HTTP 503: try again later"
        );
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let text = message(&format!("http://{closed}"), "a/b");
        assert!(text.starts_with("cannot download `config.json` of `a/b` from the hub: "), "{text}");
        assert!(text.contains("`--weights DIR`"), "{text}");
        for name in ["", "/gpt2", "a/b/c", "../gpt2", "a b", "https://huggingface.co/a/b", "a/..", "gpt2/"] {
            let text = message(&address, name);
            assert!(
                text.contains("is not the name of a repository on the hub: expected `owner/name`"),
                "{text}"
            );
        }
    }
}
