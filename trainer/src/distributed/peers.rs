//! [`Peers`]: the connections over which this rank exchanges control messages.
//!
//! They are plain TCP connections to the few ranks that [`steps`](super::steps) selects. gloo would
//! announce each message with a second message and receive it on a separate thread, which takes
//! several times as much processor time as the message itself (`make scale` measures it). It would
//! also not report which rank has closed a connection. The ranks find each other through the store.
//! They identify themselves with a random number that rank 0 puts into the store, so that no other
//! program can take the place of a rank.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::departure::cause;
use super::launch::{Launch, Store};
use crate::error::{Error, Result};
use crate::libtorch::dist::Group;

/// The store's key for the random number that identifies the ranks of a job.
const SECRET: &str = "trainer/secret";

/// The time between two checks for a connection.
const PERIOD: Duration = Duration::from_millis(5);

/// How long a connecting program may take to say which rank it is.
const GREETING: Duration = Duration::from_secs(10);

/// The length of the greeting that a rank sends when it connects: the secret and its rank.
const HELLO: usize = 32 + 4;

/// The maximum number of bytes received at once. It limits how much memory a wrong length can
/// allocate.
const PIECE: usize = 1 << 20;

/// The listener through which the other ranks connect to this rank.
#[derive(Debug)]
pub(super) struct Listener {
    listener: TcpListener,
    secret: [u8; 32],
}

/// The connections of this rank to other ranks, by rank.
#[derive(Debug)]
pub(super) struct Peers {
    streams: Mutex<BTreeMap<u32, Arc<TcpStream>>>,
    timeout: Duration,
}

/// The connections of this rank, locked for one exchange of messages.
pub(super) struct Exchanging<'a> {
    streams: MutexGuard<'a, BTreeMap<u32, Arc<TcpStream>>>,
    timeout: Duration,
}

impl Listener {
    /// Starts to listen for connections, and publishes the address in the store.
    pub(super) fn open(group: &Group, launch: &Launch) -> Result<Self> {
        let address = own_address(launch)?;
        let listener = TcpListener::bind((address, 0))?;
        listener.set_nonblocking(true)?;
        group.set(&address_key(group.rank()), &listener.local_addr()?.to_string())?;
        let mut secret = [0; 32];
        if group.rank() == 0 {
            let random: [u64; 4] = std::array::from_fn(|_| random());
            for (bytes, number) in secret.chunks_mut(8).zip(random) {
                bytes.copy_from_slice(&number.to_le_bytes());
            }
            group.set(SECRET, &blake3::Hash::from_bytes(secret).to_hex())?;
        }
        Ok(Listener { listener, secret })
    }

    /// Connects this rank with `ranks`, which must already be listening for connections. First
    /// connects to the lower ranks, and then waits for the higher ranks to connect.
    pub(super) fn connect(mut self, group: &Group, ranks: &[u32], timeout: Duration) -> Result<Peers> {
        let rank = group.rank();
        let secret = group.get(SECRET)?.unwrap_or_default();
        self.secret =
            *blake3::Hash::from_hex(secret).map_err(|error| Error::msg(error.to_string()))?.as_bytes();
        let mut streams = BTreeMap::new();
        for &peer in ranks.iter().filter(|peer| **peer < rank) {
            let address = group.get(&address_key(peer))?.unwrap_or_default();
            let failed = |why: String| {
                Error::msg(format!(
                    "rank {rank} could not connect to rank {peer} at {address} ({why}); if this is not an address that the hosts \
                     can reach, set `GLOO_SOCKET_IFNAME` to the name of the network interface"
                ))
            };
            let to: SocketAddr = address.parse().map_err(|_| failed("not an address".to_owned()))?;
            let stream =
                TcpStream::connect_timeout(&to, timeout).map_err(|error| failed(error.to_string()))?;
            let mut hello = self.secret.to_vec();
            hello.extend(rank.to_le_bytes());
            (&stream).write_all(&hello).map_err(|error| failed(error.to_string()))?;
            streams.insert(peer, prepared(stream, timeout)?);
        }
        let since = Instant::now();
        while let Some(missing) = ranks.iter().find(|peer| !streams.contains_key(peer)) {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // Anything else that connects here is not a rank of this job.
                    if let Some(peer) = self.greeted(&stream).filter(|peer| ranks.contains(peer)) {
                        streams.insert(peer, prepared(stream, timeout)?);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PERIOD),
                Err(error) => return Err(error.into()),
            }
            if let Some(error) = cause(group)? {
                return Err(error);
            }
            if since.elapsed() > timeout {
                return Err(Error::msg(format!("rank {missing} has not connected to rank {rank}")));
            }
        }
        Ok(Peers { streams: Mutex::new(streams), timeout })
    }

    /// Returns the rank that has connected, if it knows the secret.
    fn greeted(&self, mut stream: &TcpStream) -> Option<u32> {
        let mut hello = [0; HELLO];
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(GREETING)).ok()?;
        stream.read_exact(&mut hello).ok()?;
        let (secret, rank) = hello.split_first_chunk::<32>()?;
        (*secret == self.secret).then(|| rank.try_into().map(u32::from_le_bytes).ok())?
    }
}

impl Peers {
    /// Begins an exchange. Exchanges on other threads wait until it ends.
    pub(super) fn exchanging(&self) -> Exchanging<'_> {
        Exchanging { streams: self.lock(), timeout: self.timeout }
    }

    /// Closes the connections. The other ranks notice it at once.
    pub(super) fn close(&self) {
        for stream in std::mem::take(&mut *self.lock()).into_values() {
            close(&stream);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<TcpStream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchanging<'_> {
    /// Returns the connection to a rank.
    pub(super) fn stream(&self, peer: u32) -> Result<&Arc<TcpStream>> {
        let left = || Error::msg("this process has disconnected from the other ranks after an error");
        self.streams.get(&peer).ok_or_else(left)
    }

    pub(super) fn send(&self, peer: u32, bytes: &[u8]) -> Result<()> {
        let mut stream = &**self.stream(peer)?;
        stream.write_all(bytes).map_err(|error| self.lost(peer, &error))
    }

    /// Receives bytes from a rank until the buffer is full.
    pub(super) fn receive(&self, peer: u32, into: &mut [u8]) -> Result<()> {
        let mut stream = &**self.stream(peer)?;
        stream.read_exact(into).map_err(|error| self.lost(peer, &error))
    }

    /// Receives this number of bytes from a rank.
    pub(super) fn receive_bytes(&self, peer: u32, length: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let from = bytes.len();
            bytes.resize(length.min(from + PIECE), 0);
            self.receive(peer, &mut bytes[from..])?;
        }
        Ok(bytes)
    }

    fn lost(&self, peer: u32, error: &std::io::Error) -> Error {
        Error::msg(match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!("timed out: no message from rank {peer} within {:?}", self.timeout)
            }
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                format!("rank {peer} has closed the connection")
            }
            _ => format!("the connection to rank {peer}: {error}"),
        })
    }
}

/// Closes a connection. Neither of its two ranks then waits for it any longer.
pub(super) fn close(stream: &TcpStream) {
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

fn prepared(stream: TcpStream, timeout: Duration) -> Result<Arc<TcpStream>> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(Arc::new(stream))
}

/// Returns the address at which the other ranks can reach this host. If `GLOO_SOCKET_IFNAME` is
/// set, this is the address of the interface that the variable names. Otherwise, it is a loopback
/// address if all ranks are on this host, and the address of the interface that leads to the store
/// if they are not.
fn own_address(launch: &Launch) -> Result<IpAddr> {
    if let Ok(interface) = std::env::var("GLOO_SOCKET_IFNAME") {
        let address = Group::interface_address(&interface).and_then(|address| address.parse().ok());
        return address.ok_or_else(|| {
            Error::usage(format!(
                "`GLOO_SOCKET_IFNAME` is `{interface}`, but this host has no network interface of this name with an address"
            ))
        });
    }
    match &launch.store {
        Store::Tcp(host, port) if !launch.is_local() => {
            // This sends nothing: it asks the operating system for the route.
            let socket = UdpSocket::bind(("0.0.0.0", 0)).and_then(|socket| {
                socket.connect((host.as_str(), *port))?;
                Ok(socket)
            });
            let socket = socket.or_else(|_| {
                let socket = UdpSocket::bind(("::", 0))?;
                socket.connect((host.as_str(), *port))?;
                Ok::<_, Error>(socket)
            })?;
            Ok(socket.local_addr()?.ip())
        }
        _ => Ok(Ipv4Addr::LOCALHOST.into()),
    }
}

/// Returns a random number from the operating system.
pub(super) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

fn address_key(rank: u32) -> String {
    format!("trainer/address/{rank}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_knows_the_secret_is_accepted_as_a_rank() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Listener { listener, secret: [7; 32] };
        let greeted = |hello: Vec<u8>| {
            let client = thread::spawn(move || TcpStream::connect(address).unwrap().write_all(&hello));
            let (stream, _) = listener.listener.accept().unwrap();
            let rank = listener.greeted(&stream);
            let _ = client.join().unwrap();
            rank
        };
        let hello = |secret: u8, rank: u32| [vec![secret; 32], rank.to_le_bytes().to_vec()].concat();
        assert_eq!(greeted(hello(7, 5)), Some(5));
        assert_eq!(greeted(hello(8, 5)), None);
        assert_eq!(greeted(b"GET / HTTP/1.1\r\n\r\n".to_vec()), None);
        assert_eq!(greeted(Vec::new()), None);
    }
}
