//! Downloads of small wheels from a server of the test.

#![allow(clippy::disallowed_methods, reason = "tests write what a killed process would have left")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest, Sha256};
use trainer_files::{TemporaryFolder, entries, name_of, read_text};
use zip::ZipWriter;
use zip::write::FileOptions;

use super::*;
use crate::output::Output;

#[test]
fn the_file_of_builds_is_complete() {
    for (is_cuda, wheels, libraries) in [(false, 3, 5), (true, 17, 31)] {
        let build = Build::new(is_cuda);
        assert_eq!((build.wheels.len(), build.libraries.len()), (wheels, libraries));
        assert!(build.downloaded > 500_000_000 && build.needed > build.downloaded);
        for wheel in build.wheels {
            assert!(!wheel.name.is_empty() && wheel.sha256.len() == 64, "{}", wheel.name);
        }
    }
    assert_eq!(version(), "2.13.0");
}

/// An index of packages that keeps a list of what is requested.
struct Server {
    address: String,
    /// The content of each path.
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// The path and the first byte of each request.
    requests: Arc<Mutex<Vec<(String, usize)>>>,
    /// After how many bytes an answer is cut off.
    cut: Arc<Mutex<Option<usize>>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: format!("http://{}", listener.local_addr().unwrap()),
            files: Arc::default(),
            requests: Arc::default(),
            cut: Arc::default(),
        };
        let (files, requests, cut) =
            (Arc::clone(&server.files), Arc::clone(&server.requests), Arc::clone(&server.cut));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                answer(&stream, &files.lock().unwrap(), &requests, *cut.lock().unwrap());
            }
        });
        server
    }

    /// Offers a wheel with these files. Returns it as a build requires it.
    fn offer(&self, name: &str, content: &[(&str, &[u8])]) -> Wheel {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        for (path, content) in content {
            archive.start_file(*path, FileOptions::default()).unwrap();
            archive.write_all(content).unwrap();
        }
        let bytes = archive.finish().unwrap().into_inner();
        let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let index = serde_json::json!({ "files": [
            { "url": "other.whl", "hashes": { "sha256": "0" } },
            { "url": format!("{}/{name}.whl", self.address), "hashes": { "sha256": sha256 } },
        ]});
        let mut files = self.files.lock().unwrap();
        files.insert(format!("/{name}/"), index.to_string().into_bytes());
        files.insert(format!("/{name}.whl"), bytes);
        Wheel { name: name.to_owned(), sha256 }
    }

    fn requests(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn answer(
    mut stream: &TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    requests: &Mutex<Vec<(String, usize)>>,
    cut: Option<usize>,
) {
    let lines: Vec<String> =
        BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let Some(path) = lines.first().and_then(|line| line.split(' ').nth(1)) else { return };
    let range =
        lines.iter().find_map(|line| line.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
    let start: usize = range.map_or(0, |range| range.trim_end_matches('-').parse().unwrap());
    requests.lock().unwrap().push((path.to_owned(), start));
    let Some(content) = files.get(path) else {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
    };
    let rest = &content[start..];
    let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
    let range = format!("Content-Range: bytes {start}-{}/{}\r\n", content.len() - 1, content.len());
    let head =
        format!("HTTP/1.1 {status}\r\n{range}Content-Length: {}\r\nConnection: close\r\n\r\n", rest.len());
    let _ = stream.write_all(head.as_bytes());
    let sent = if path.ends_with(".whl") { cut.unwrap_or(rest.len()).min(rest.len()) } else { rest.len() };
    let _ = stream.write_all(&rest[..sent]);
}

/// Returns a build of two wheels, which a server offers.
fn build(server: &Server) -> Build {
    let library = vec![7; 40_000];
    let torch: [(&str, &[u8]); 4] = [
        ("torch/include/ATen/ATen.h", b"// a header"),
        ("torch/lib/libtorch_cpu.so", &library),
        ("torch/lib/libtorch_python.so", b"not needed"),
        ("torch/__init__.py", b"not needed"),
    ];
    let wheels = vec![
        server.offer("torch", &torch),
        server.offer("runtime", &[("nvidia/cu13/lib/libcudart.so.13", b"runtime")]),
    ];
    let libraries = ["libtorch_cpu.so", "libcudart.so.13"].map(str::to_owned).to_vec();
    Build { version: "9.9.9".to_owned(), is_cuda: false, wheels, libraries, downloaded: 1, needed: 1 }
}

/// Downloads a build into a cache.
fn get(build: &Build, cache: &std::path::Path, server: &Server) -> Result<(), String> {
    let got = download::get(build, cache, &cache.join("libtorch"), &server.address, &mut Output::new(true));
    got.map_err(|failure| match failure {
        Failure::Message(message) => message,
        Failure::OutputClosed => unreachable!("nothing is printed"),
    })
}

/// Returns the names in a folder, without that of the lock.
fn names(folder: &std::path::Path) -> Vec<String> {
    let paths = entries(folder).unwrap();
    let mut names: Vec<_> = paths.iter().map(|path| name_of(path).to_owned()).collect();
    names.retain(|name| name != ".trainer-lock");
    names.sort();
    names
}

#[test]
fn a_build_has_the_libraries_and_headers_of_its_wheels() {
    let (server, cache) = (Server::start(), TemporaryFolder::create("libtorch-whole").unwrap());
    let build = build(&server);
    get(&build, cache.path(), &server).unwrap();
    let folder = cache.path().join("libtorch");
    assert_eq!(names(&folder), ["build-version", "include", "lib"]);
    assert_eq!(names(&folder.join("lib")), ["libcudart.so.13", "libtorch.so", "libtorch_cpu.so"]);
    assert_eq!(read_text(&folder.join("build-version")).unwrap(), "9.9.9\n");
    assert_eq!(read_text(&folder.join("include/ATen/ATen.h")).unwrap(), "// a header");
    assert_eq!(names(&cache.path().join("wheels")), [""; 0], "the wheels are removed");
    // What is there is not downloaded again.
    server.requests();
    get(&build, cache.path(), &server).unwrap();
    assert_eq!(server.requests(), []);
}

#[test]
fn an_interrupted_download_continues_where_it_ended() {
    let (server, cache) = (Server::start(), TemporaryFolder::create("libtorch-cut").unwrap());
    let build = build(&server);
    // In one call: every answer is cut off, but each brings something.
    *server.cut.lock().unwrap() = Some(100);
    get(&build, cache.path(), &server).unwrap();
    let starts: Vec<usize> = server
        .requests()
        .into_iter()
        .filter(|(path, _)| path == "/torch.whl")
        .map(|(_, start)| start)
        .collect();
    assert!(starts.len() > 3, "{starts:?}");
    assert!(starts.iter().enumerate().all(|(nth, start)| *start == 100 * nth), "{starts:?}");

    // In two calls: the server has died in between.
    let cache = TemporaryFolder::create("libtorch-died").unwrap();
    let whole = server.files.lock().unwrap()["/torch.whl"].clone();
    std::fs::create_dir_all(cache.path().join("wheels")).unwrap();
    let part = format!("wheels/{}.part", build.wheels[0].sha256);
    std::fs::write(cache.path().join(&part), &whole[..150]).unwrap();
    *server.cut.lock().unwrap() = Some(0);
    let error = get(&build, cache.path(), &server).unwrap_err();
    assert!(error.contains("torch: ") && error.contains("is kept: run the command again"), "{error}");
    assert_eq!(std::fs::read(cache.path().join(&part)).unwrap(), whole[..150]);
    assert_eq!(names(cache.path()), ["wheels"], "nothing is unpacked");
    *server.cut.lock().unwrap() = None;
    server.requests();
    get(&build, cache.path(), &server).unwrap();
    assert_eq!(server.requests()[1], ("/torch.whl".to_owned(), 150));
    assert_eq!(names(cache.path()), ["libtorch", "wheels"]);
}

#[test]
fn a_file_with_another_hash_is_refused_and_removed() {
    let (server, cache) = (Server::start(), TemporaryFolder::create("libtorch-hash").unwrap());
    let build = build(&server);
    server.files.lock().unwrap().get_mut("/runtime.whl").unwrap()[50] ^= 1;
    let error = get(&build, cache.path(), &server).unwrap_err();
    assert!(error.contains("runtime: ") && error.contains(&build.wheels[1].sha256), "{error}");
    assert_eq!(names(cache.path()), ["wheels"], "nothing is unpacked");
    assert_eq!(names(&cache.path().join("wheels")), [format!("{}.whl", build.wheels[0].sha256)]);
}

#[test]
fn nothing_half_unpacked_is_left() {
    let (server, cache) = (Server::start(), TemporaryFolder::create("libtorch-half").unwrap());
    let mut build = build(&server);
    build.libraries.push("libmissing.so".to_owned());
    let error = get(&build, cache.path(), &server).unwrap_err();
    assert!(error.contains("the wheels do not contain libmissing.so"), "{error}");
    assert_eq!(names(cache.path()), ["wheels"]);
    // Of a process that was killed while it unpacked.
    build.libraries.pop();
    std::fs::create_dir_all(cache.path().join(".writing-libtorch-1/lib")).unwrap();
    std::fs::write(cache.path().join(".writing-libtorch-1/lib/libtorch_cpu.so"), "half").unwrap();
    get(&build, cache.path(), &server).unwrap();
    assert_eq!(names(cache.path()), ["libtorch", "wheels"]);
}

#[test]
fn an_index_without_the_file_is_an_error() {
    let (server, cache) = (Server::start(), TemporaryFolder::create("libtorch-index").unwrap());
    let build = build(&server);
    server.files.lock().unwrap().remove("/torch/");
    let error = get(&build, cache.path(), &server).unwrap_err();
    assert!(error.contains("/torch/: the server answered with HTTP 404"), "{error}");
    server.files.lock().unwrap().insert("/torch/".to_owned(), br#"{"files": []}"#.to_vec());
    let error = get(&build, cache.path(), &server).unwrap_err();
    assert!(error.contains("/torch/: no file has the SHA-256"), "{error}");
    server.files.lock().unwrap().insert("/torch/".to_owned(), b"<html>".to_vec());
    let error = get(&build, cache.path(), &server).unwrap_err();
    assert!(error.contains("expected an index in JSON"), "{error}");
}
