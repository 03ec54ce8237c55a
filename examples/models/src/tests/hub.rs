//! Downloading from servers that keep their promises, and from servers that do not.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;

const COMMIT: &str = "607a30d783dfa663caf39e06633721c8d4cfcd7e";

/// A local hub. It redirects requests for weights to its storage, like the real hub.
struct Server {
    /// The contents of files by their path: `owner/name/config.json`.
    files: BTreeMap<String, Vec<u8>>,
    /// The token that requests must have, if any.
    token: Option<&'static str>,
    /// The number of downloads that are cut off half-way.
    cut: Mutex<usize>,
    /// The status of all responses, if set.
    fails: Option<u16>,
    /// What the server says instead of the truth, by the name of the header.
    lies: BTreeMap<&'static str, String>,
    /// What the storage sends instead of each file.
    sends: Option<Vec<u8>>,
    /// Where the storage is, if it is not a part of this server.
    storage: Option<String>,
    /// Whether the storage never finishes.
    stalls: bool,
    /// The requests, each as its method, path, range and whether it had a token.
    requests: Mutex<Vec<String>>,
}

impl Server {
    fn with(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, content)| ((*path).to_owned(), content.to_vec())).collect();
        Server {
            files,
            token: None,
            cut: Mutex::new(0),
            fails: None,
            lies: BTreeMap::new(),
            sends: None,
            storage: None,
            stalls: false,
            requests: Mutex::default(),
        }
    }

    /// A server of the repository `m`.
    fn of_m() -> Self {
        Server::with(&[("m/config.json", b"{}"), ("m/model.safetensors", WEIGHTS_OF_M)])
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
                let (server, own, stream) = (Arc::clone(&shared), own.clone(), stream.unwrap());
                thread::spawn(move || server.answer(&stream, &own));
            }
        });
        (server, address)
    }

    fn answer(&self, mut stream: &TcpStream, address: &str) -> io::Result<()> {
        let mut lines = Vec::new();
        for line in BufReader::new(stream).lines() {
            let line = line?;
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let mut words = lines[0].split(' ');
        let (method, path) =
            (words.next().unwrap(), words.next().unwrap().trim_start_matches('/').to_owned());
        let header = |name: &str| {
            let found = lines.iter().find(|line| line.to_lowercase().starts_with(name));
            found.map(|line| line[name.len() + 1..].trim().to_owned())
        };
        let range = header("range").unwrap_or_default();
        let token = header("authorization");
        let with_token = if token.is_some() { " token" } else { "" };
        self.requests.lock().unwrap().push(format!("{method} {path} {range}{with_token}"));
        if let Some(code) = self.fails {
            return refuse(stream, code);
        }
        let (is_stored, path) = match path.strip_prefix("storage/") {
            Some(path) => (true, path.to_owned()),
            None => (false, path),
        };
        if self.token.is_some_and(|own| !is_stored && token != Some(format!("Bearer {own}"))) {
            return refuse(stream, 401);
        }
        let (repository, rest) = path.split_once("/resolve/").unwrap();
        let (_, name) = rest.split_once('/').unwrap();
        let Some(content) = self.files.get(&format!("{repository}/{name}")) else {
            return refuse(stream, 404);
        };
        let lie = |header: &'static str, truth: String| self.lies.get(header).cloned().unwrap_or(truth);
        let commit = lie("x-repo-commit", COMMIT.to_owned());
        if name == "model.safetensors" && !is_stored {
            let storage = self.storage.as_deref().unwrap_or(address);
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {}\r\nX-Repo-Commit: {commit}\r\nX-Linked-Etag: \"{}\"\r\n\
                 X-Linked-Size: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                lie("location", format!("{storage}/storage/{path}")),
                lie("x-linked-etag", digest(content, 64)),
                lie("x-linked-size", content.len().to_string()),
            );
        }
        let content = if is_stored { self.sends.as_ref().unwrap_or(content) } else { content };
        let start =
            range.strip_prefix("bytes=").map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
        let status = if start > 0 { "206 Partial" } else { "200 OK" };
        let etag = lie("etag", digest(content, 40));
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Range: bytes {start}-{}/{}\r\nX-Repo-Commit: {commit}\r\nETag: \"{etag}\"\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            content.len() - 1,
            content.len(),
            content.len() - start
        )?;
        if method == "HEAD" {
            return Ok(());
        }
        let mut end = content.len();
        let mut cut = self.cut.lock().unwrap();
        if is_stored && *cut > 0 {
            *cut -= 1;
            end = start + (end - start) / 2;
        }
        drop(cut);
        stream.write_all(&content[start..end - usize::from(self.stalls && is_stored)])?;
        if self.stalls && is_stored {
            thread::sleep(Duration::from_secs(600));
        }
        Ok(())
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

fn refuse(mut stream: &TcpStream, status: u16) -> io::Result<()> {
    write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// The hash of a file as the hub announces it.
fn digest(content: &[u8], digits: usize) -> String {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    hash(&mut file, digits).unwrap()
}

fn hub(address: &str, cache: &Path) -> Hub {
    Hub { token: None, ..Hub::new() }.endpoint(address).cache(cache).progress(false)
}

const WEIGHTS_OF_M: &[u8] = b"the weights of m";

/// All files below a folder, except for those that are links.
fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_below(&entry.path()));
        } else {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

#[test]
fn hashes_are_those_of_git_and_sha256() {
    assert_eq!(digest(b"{}", 40), "9e26dfeeb6e641a33dae4961196235bdb965b21b");
    assert_eq!(digest(b"", 64), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

#[test]
fn files_are_downloaded_once_and_both_from_one_commit() {
    let weights: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    let files = [
        ("openai-community/gpt2/config.json", b"{}".as_slice()),
        ("openai-community/gpt2/model.safetensors", &weights),
    ];
    let (server, address) = Server::with(&files).start();
    let cache = tempfile::tempdir().unwrap();
    let files = hub(&address, cache.path()).fetch("openai-community/gpt2").unwrap();
    assert_eq!(fs::read(&files.config).unwrap(), b"{}");
    assert_eq!(fs::read(&files.weights).unwrap(), weights);
    assert!(files.weights.ends_with(format!("snapshots/{COMMIT}/model.safetensors")), "{files:?}");
    let config = "openai-community/gpt2/resolve/main/config.json";
    let weights = format!("openai-community/gpt2/resolve/{COMMIT}/model.safetensors");
    assert_eq!(
        server.requests(),
        [
            format!("HEAD {config} "),
            format!("GET {config} "),
            format!("HEAD {weights} "),
            format!("HEAD storage/{weights} "),
            format!("GET {weights} "),
            format!("GET storage/{weights} "),
        ]
    );
    assert_eq!(hub(&address, cache.path()).fetch("openai-community/gpt2").unwrap(), files);
    assert_eq!(server.requests(), [""; 0], "the second time, from the cache");
    assert_eq!(Files::in_folder(files.config.parent().unwrap()).unwrap(), files);
}

#[test]
fn an_interrupted_download_is_continued() {
    let weights: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    let server = || Server::with(&[("m/config.json", b"{}"), ("m/model.safetensors", &weights)]);
    let (server, address) = Server { cut: Mutex::new(5), ..server() }.start();
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&address, cache.path()).revision("v1");
    let text = hub.fetch("m").unwrap_err().to_string();
    assert!(text.contains("the connection ended after 87500 of 100000 bytes"), "{text}");
    assert!(files_below(cache.path()).iter().all(|name| name != "model.safetensors"));
    let files = hub.fetch("m").unwrap();
    assert_eq!(fs::read(&files.weights).unwrap(), weights);
    let requests = server.requests();
    for start in [50_000, 75_000, 87_500, 93_750] {
        let expected = format!("GET storage/m/resolve/{COMMIT}/model.safetensors bytes={start}-");
        assert!(requests.contains(&expected), "{requests:?}");
    }
}

#[test]
fn a_damaged_part_of_an_earlier_download_is_noticed() {
    let (_server, address) = Server::of_m().start();
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--m/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(digest(WEIGHTS_OF_M, 64) + ".trainer-part"), "other bytes").unwrap();
    let text = hub(&address, cache.path()).fetch("m").unwrap_err().to_string();
    assert!(text.contains("its hash is"), "{text}");
    let files = hub(&address, cache.path()).fetch("m").unwrap();
    assert_eq!(fs::read(files.weights).unwrap(), WEIGHTS_OF_M);
}

#[test]
fn weights_saved_by_torch_save_are_downloaded_from_older_repositories() {
    let (_server, address) =
        Server::with(&[("m/config.json", b"{}"), ("m/pytorch_model.bin", b"PK")]).start();
    let cache = tempfile::tempdir().unwrap();
    let files = hub(&address, cache.path()).fetch("m").unwrap();
    assert_eq!(fs::read(&files.weights).unwrap(), b"PK");
}

#[test]
fn a_token_gives_access_to_a_restricted_repository_and_stays_with_the_hub() {
    let (storage, storage_address) = Server::of_m().start();
    let server = Server { token: Some("hf_secret"), storage: Some(storage_address), ..Server::of_m() };
    let (server, address) = server.start();
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&address, cache.path());
    let text = hub.clone().token("another").fetch("m").unwrap_err().to_string();
    assert!(
        text.starts_with("cannot download `config.json` of `m` from the hub: the hub refuses access (HTTP 401): check the name"),
        "{text}"
    );
    let hub = hub.token("hf_secret");
    assert!(!format!("{hub:?}").contains("secret"));
    assert_eq!(fs::read(hub.fetch("m").unwrap().weights).unwrap(), WEIGHTS_OF_M);
    assert!(server.requests().iter().all(|request| request.ends_with(" token")));
    let requests = storage.requests();
    assert_eq!(requests, [format!("GET storage/m/resolve/{COMMIT}/model.safetensors ")]);
}

#[test]
fn a_token_is_sent_over_https_or_to_this_machine_only() {
    let origin = |address: &str| Origin::of(address).unwrap();
    assert!(origin("http://127.0.0.1:80").is_loopback() && origin("http://[::1]:80").is_loopback());
    assert!(!origin("http://mirror.example").is_loopback() && !origin("http://10.0.0.1").is_loopback());
}

#[test]
fn redirects_lead_to_hosts_with_names_over_https_only() {
    let hub = Origin::of("https://huggingface.co").unwrap();
    let may = |hub: &Origin, other: &str| Origin::of(other).is_some_and(|other| hub.may_redirect_to(&other));
    for address in ["https://huggingface.co/x", "https://cdn-lfs.hf.co/x?a=b", "https://HuggingFace.co:443/x"]
    {
        assert!(may(&hub, address), "{address}");
    }
    for address in [
        "http://huggingface.co/x",
        "http://cdn-lfs.hf.co/x",
        "https://127.0.0.1/x",
        "https://169.254.169.254/latest",
        "https://[::1]/x",
        "https://localhost/x",
        "https://huggingface.co@evil.example/x",
        "ftp://huggingface.co/x",
        "file:///etc/passwd",
        "huggingface.co/x",
        "",
    ] {
        assert!(!may(&hub, address), "{address}");
    }
    let local = Origin::of("http://127.0.0.1:1234").unwrap();
    assert!(may(&local, "http://127.0.0.1:99/x") && may(&local, "https://cdn.example/x"));
    assert!(!may(&local, "http://localhost:99/x") && !may(&local, "http://10.0.0.1/x"));
}

#[test]
fn what_a_server_must_not_send_is_refused_and_nothing_is_stored() {
    let lie = |header: &'static str, value: &str| Server {
        lies: BTreeMap::from([(header, value.to_owned())]),
        ..Server::of_m()
    };
    let sends = |content: &[u8]| Server { sends: Some(content.to_vec()), ..Server::of_m() };
    let other = WEIGHTS_OF_M.to_ascii_uppercase();
    let longer = [WEIGHTS_OF_M, b"more"].concat();
    let huge = u64::MAX.to_string();
    let cases = [
        (lie("x-repo-commit", "../../../outside"), "the server sent the commit \"../../../outside\""),
        (lie("x-repo-commit", "/outside"), "the server sent the commit"),
        (lie("x-repo-commit", ""), "the server sent the commit"),
        (lie("etag", "../../../../outside"), "the server sent the hash \"../../../../outside\""),
        (lie("etag", "9E26DFEEB6E641A33DAE4961196235BDB965B21B"), "the server sent the hash"),
        (lie("etag", "0026dfeeb6e641a33dae4961196235bdb965b21b"), "its hash is 9e26dfee"),
        (lie("x-linked-etag", "/outside"), "the server sent the hash"),
        (lie("x-linked-etag", &digest(b"x", 64)), "its hash is"),
        (lie("x-linked-size", "5"), "the server sends more than 5 bytes"),
        (lie("x-linked-size", "99"), "the connection ended after 16 of 99 bytes"),
        (lie("x-linked-size", &huge), "more than the limit of 1000"),
        (sends(&other), "its hash is"),
        (sends(&longer), "the server sends more than 16 bytes"),
        (sends(b"short"), "the connection ended after 5 of 16 bytes"),
        (sends(b"<!DOCTYPE html>."), "its hash is"),
        (lie("location", "http://localhost:9/x"), "the server redirects to \"http://localhost:9/x\""),
        (lie("location", "//evil.example/x"), "the server redirects to"),
        (lie("location", "file:///etc/passwd"), "the server redirects to"),
        (lie("location", ""), "the server redirects to \"\""),
        (lie("location", "/m/resolve/main/model.safetensors"), "redirects more than 5 times"),
    ];
    for (server, expected) in cases {
        let (_server, address) = server.start();
        let cache = tempfile::tempdir().unwrap();
        let folder = cache.path().join("a/b/c/d");
        let text = hub(&address, &folder).max_bytes(1000).fetch("m").unwrap_err().to_string();
        assert!(
            text.starts_with("cannot download `") && text.contains(expected),
            "expected {expected}: {text}"
        );
        let stored = files_below(cache.path());
        let is_expected = |name: &String| {
            ["main", "config.json", &digest(b"{}", 40)].contains(&&**name) || name.ends_with(".trainer-part")
        };
        assert!(stored.iter().all(is_expected), "{expected}: {stored:?}");
        assert!(fs::read_dir(cache.path()).unwrap().count() <= 1);
    }
}

#[test]
fn a_server_that_stops_sending_is_left_after_the_time_limit() {
    let (_server, address) = Server { stalls: true, ..Server::of_m() }.start();
    let cache = tempfile::tempdir().unwrap();
    let hub = hub(&address, cache.path()).timeout(Duration::from_millis(1500));
    let text = hub.fetch("m").unwrap_err().to_string();
    assert!(text.contains("cannot download `model.safetensors`") && text.contains("time"), "{text}");
}

#[test]
fn errors_name_the_repository_the_file_and_a_remedy() {
    let cache = tempfile::tempdir().unwrap();
    let message = |address: &str, repository: &str| {
        hub(address, cache.path()).fetch(repository).unwrap_err().to_string()
    };
    let (_server, address) = Server::with(&[("m/config.json", b"{}")]).start();
    assert_eq!(
        message(&address, "other/m"),
        "cannot download `config.json` of `other/m` from the hub: there is no such file at `main`: check the names"
    );
    assert_eq!(
        message(&address, "m"),
        "`m` on the hub has neither `model.safetensors` nor `pytorch_model.bin` at `main`: weights in several files \
         are not supported"
    );
    let (_server, address) = Server { fails: Some(503), ..Server::of_m() }.start();
    assert_eq!(
        message(&address, "a/b"),
        "cannot download `config.json` of `a/b` from the hub: the hub answered with HTTP 503: try again later"
    );
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = message(&format!("http://{closed}"), "a/b");
    assert!(text.starts_with("cannot download `config.json` of `a/b` from the hub: "), "{text}");
    assert!(text.contains("`--weights DIR`"), "{text}");
    for name in [
        "",
        "/gpt2",
        "a/b/c",
        "../gpt2",
        "a b",
        "https://huggingface.co/a/b",
        "a/..",
        "gpt2/",
        "a--b",
        "a/x..y",
    ] {
        let text = message(&address, name);
        assert!(text.contains("is not the name of a repository on the hub: expected `owner/name`"), "{text}");
    }
    for revision in ["", "..", "../main", "/main", "a//b", "a/../b", "main\n", ".hidden"] {
        let text = hub(&address, cache.path()).revision(revision).fetch("m").unwrap_err().to_string();
        assert!(text.contains("is not a revision"), "{text}");
    }
    for address in ["", "huggingface.co", "ftp://x", "https://user:password@x"] {
        let text = message(address, "m");
        assert!(text.contains("is not the address of a hub"), "{text}");
    }
}
