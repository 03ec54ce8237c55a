//! Calls into libtorch's c10d, through the C++ functions of `trainer-c10d-sys`.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tch::Tensor;
use trainer_c10d_sys::{
    RawBatchNorm, WorldOptions, trainer_exchange_abandon, trainer_exchange_begin, trainer_exchange_finish,
    trainer_exchange_free, trainer_exchange_new, trainer_exchange_ready, trainer_interface_address,
    trainer_open_files, trainer_reducer_check, trainer_reducer_compress, trainer_reducer_finish,
    trainer_reducer_free, trainer_reducer_new, trainer_reducer_prepare, trainer_reducer_set_static,
    trainer_store_free, trainer_store_get, trainer_store_new, trainer_store_set, trainer_world_all_gather,
    trainer_world_all_reduce, trainer_world_batch_norm, trainer_world_broadcast, trainer_world_close,
    trainer_world_connect, trainer_world_count, trainer_world_get, trainer_world_leave, trainer_world_open,
    trainer_world_reduce_scatter, trainer_world_set, trainer_world_set_shared, trainer_world_shared,
};
use trainer_sys::trainer_free;

use super::{TensorList, outcome};
use crate::error::Result;

/// The rendezvous: where and how the ranks connect.
#[derive(Clone, Debug)]
pub(crate) struct Meeting<'a> {
    /// The host and the port of a TCP store.
    pub(crate) tcp: (&'a str, u16),
    /// The file of a file store, which is used instead of the TCP store.
    pub(crate) file: Option<&'a str>,
    pub(crate) prefix: &'a str,
    pub(crate) interface: Option<&'a str>,
    pub(crate) own_host: Option<&'a str>,
    pub(crate) timeout_ms: i64,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) is_server: bool,
}

/// The process groups. Collectives of different groups cannot receive each other's data.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum ProcessGroup {
    /// Gradients and the program's own collectives.
    Data = 0,
    /// The collectives of layers, such as `SyncBatchNorm`.
    Layers = 1,
}

/// The arguments of a batch normalization that uses the statistics of all ranks.
#[derive(Debug)]
pub(crate) struct BatchNorm<'a> {
    /// The input, of shape `[rows, features, …]`.
    pub(crate) input: &'a Tensor,
    pub(crate) weight: Option<&'a Tensor>,
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) mean: &'a Tensor,
    pub(crate) variance: &'a Tensor,
    pub(crate) eps: f64,
    /// The number of values of each feature across all ranks.
    pub(crate) count: f64,
    /// Whether `mean` and `variance` include the input of this rank; false for a batch borrowed
    /// from another rank.
    pub(crate) counts: bool,
}

/// The process groups of this process, and the store.
#[derive(Debug)]
struct Handle(*mut c_void);

// SAFETY: c10d's groups and stores may be used from any thread; the mutex around the handle
// serializes the calls.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the shim opened it, and it is not used again.
        unsafe { trainer_world_close(self.0) };
    }
}

#[derive(Debug)]
struct Opened {
    rank: u32,
    size: u32,
    is_server: bool,
    /// Whether a collective has failed. If so, an error on this rank is only a consequence, and its
    /// cause is on another rank.
    has_failed: AtomicBool,
    handle: Mutex<Handle>,
}

/// The connections of this process to the other ranks.
#[derive(Clone, Debug)]
pub(crate) struct Group(Arc<Opened>);

/// Converts a string to a C string, replacing null characters with spaces.
fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).expect("no null character is left in it")
}

impl Group {
    /// Whether this crate was built with the feature `distributed`.
    pub(crate) const IS_AVAILABLE: bool = true;

    /// Raises the limit on open files of this process to `needed` if it is lower and may be raised.
    /// Returns the resulting limit.
    pub(crate) fn raise_open_files(needed: u64) -> u64 {
        // SAFETY: it takes and returns a number.
        unsafe { trainer_open_files(needed) }
    }

    /// Opens the store through which the ranks meet.
    pub(crate) fn open(at: &Meeting<'_>) -> Result<Self> {
        let host = c_text(at.tcp.0);
        let prefix = c_text(at.prefix);
        let [file, interface, own_host] = [at.file, at.interface, at.own_host].map(|text| text.map(c_text));
        let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        let with = WorldOptions {
            host: host.as_ptr(),
            file: pointer(&file),
            prefix: prefix.as_ptr(),
            interface: pointer(&interface),
            own_host: pointer(&own_host),
            timeout_ms: at.timeout_ms,
            port: i32::from(at.tcp.1),
            rank: at.rank.cast_signed(),
            size: at.size.cast_signed(),
            is_server: at.is_server,
        };
        let mut opened = std::ptr::null_mut();
        // SAFETY: the strings outlive the call; the shim writes a handle if it returns null.
        outcome(unsafe { trainer_world_open(&raw const with, &raw mut opened) })?;
        let handle = Mutex::new(Handle(opened));
        let is_server = at.is_server && at.file.is_none();
        let has_failed = AtomicBool::new(false);
        Ok(Group(Arc::new(Opened { rank: at.rank, size: at.size, is_server, has_failed, handle })))
    }

    /// Opens the process groups. A group connects to another rank only when the connection is first
    /// needed.
    pub(crate) fn connect(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        self.with(|world| unsafe { trainer_world_connect(world) })
    }

    /// Sets a key that all programs with this store share, unless it is already set.
    pub(crate) fn set_shared(&self, key: &str, value: &str) -> Result<()> {
        let key = c_text(key);
        let (bytes, count) = (value.as_ptr(), value.len());
        // SAFETY: the handle and the strings are alive.
        self.with(|world| unsafe { trainer_world_set_shared(world, key.as_ptr(), bytes, count) })
    }

    /// Reads a key that all programs with this store share, without waiting for it to be set.
    pub(crate) fn shared(&self, key: &str) -> Result<Option<String>> {
        let key = c_text(key);
        let mut value = std::ptr::null_mut();
        // SAFETY: the handle and the string are alive; the shim writes a string or leaves null.
        self.with(|world| unsafe { trainer_world_shared(world, key.as_ptr(), &raw mut value) })?;
        // SAFETY: the shim wrote the string or left null.
        Ok(unsafe { taken(value) })
    }

    /// Adds 1 to the number under a key of the store, and returns the sum.
    pub(crate) fn count(&self, key: &str) -> Result<u64> {
        let key = c_text(key);
        let mut sum = 0;
        // SAFETY: the handle and the string are alive; the shim writes a number.
        self.with(|world| unsafe { trainer_world_count(world, key.as_ptr(), &raw mut sum) })?;
        Ok(sum.cast_unsigned())
    }

    pub(crate) fn rank(&self) -> u32 {
        self.0.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.0.size
    }

    /// Whether this process serves the store.
    pub(crate) fn is_server(&self) -> bool {
        self.0.is_server
    }

    /// Whether a collective has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.0.has_failed.load(Ordering::Relaxed)
    }

    pub(crate) fn note_failure(&self) {
        self.0.has_failed.store(true, Ordering::Relaxed);
    }

    fn with(&self, call: impl FnOnce(*mut c_void) -> *mut c_char) -> Result<()> {
        let handle = self.0.handle.lock().unwrap_or_else(PoisonError::into_inner);
        outcome(call(handle.0))
    }

    /// Closes the connections, so that collectives in which other ranks are waiting fail
    /// immediately. The store stays open.
    pub(crate) fn leave(&self) {
        // SAFETY: the handle is alive.
        let _ = self.with(|world| unsafe { trainer_world_leave(world) });
    }

    pub(crate) fn all_reduce(&self, group: ProcessGroup, tensor: &Tensor, op: i32) -> Result<()> {
        // SAFETY: both handles are alive.
        self.with(|world| unsafe {
            trainer_world_all_reduce(world, group as i32, tensor.as_ptr().cast_mut(), op)
        })
    }

    pub(crate) fn broadcast(&self, tensors: &TensorList, root: u32) -> Result<()> {
        let handles = &tensors.handles;
        // SAFETY: the handles are alive, and their number is passed.
        self.with(|world| unsafe {
            trainer_world_broadcast(world, handles.as_ptr(), handles.len(), root.cast_signed())
        })
    }

    pub(crate) fn all_gather(&self, input: &Tensor, output: &Tensor) -> Result<()> {
        let input = input.as_ptr().cast_mut();
        let output = output.as_ptr().cast_mut();
        // SAFETY: the handles are alive; c10d checks the sizes.
        self.with(|world| unsafe { trainer_world_all_gather(world, input, output) })
    }

    pub(crate) fn reduce_scatter(&self, input: &Tensor, output: &Tensor) -> Result<()> {
        let input = input.as_ptr().cast_mut();
        let output = output.as_ptr().cast_mut();
        // SAFETY: the handles are alive; c10d checks the sizes.
        self.with(|world| unsafe { trainer_world_reduce_scatter(world, input, output) })
    }

    /// Normalizes the input. Autograd records the operation.
    pub(crate) fn batch_norm(&self, with: &BatchNorm<'_>) -> Result<Tensor> {
        let optional = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null(), Tensor::as_ptr);
        let with = RawBatchNorm {
            input: with.input.as_ptr(),
            weight: optional(with.weight),
            bias: optional(with.bias),
            mean: with.mean.as_ptr(),
            variance: with.variance.as_ptr(),
            eps: with.eps,
            count: with.count,
            counts: with.counts,
        };
        let mut normalized = std::ptr::null_mut();
        // SAFETY: the handles are alive; the shim writes a handle if it returns null.
        self.with(|world| unsafe { trainer_world_batch_norm(world, &raw const with, &raw mut normalized) })?;
        // SAFETY: the shim made the handle, and nothing else owns it.
        Ok(unsafe { Tensor::from_ptr(normalized) })
    }

    /// Sets a key of the store, unless it is already set.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<()> {
        let key = c_text(key);
        // SAFETY: the handle and the strings are alive.
        self.with(|world| unsafe { trainer_world_set(world, key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// Reads a key of the store, without waiting for it to be set.
    pub(crate) fn get(&self, key: &str) -> Result<Option<String>> {
        let key = c_text(key);
        let mut value = std::ptr::null_mut();
        // SAFETY: the handle and the string are alive; the shim writes a string or leaves null.
        self.with(|world| unsafe { trainer_world_get(world, key.as_ptr(), &raw mut value) })?;
        // SAFETY: the shim wrote the string or left null.
        Ok(unsafe { taken(value) })
    }

    /// Returns a handle to the store for another thread.
    pub(crate) fn store(&self) -> Store {
        let handle = self.0.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is alive.
        Store(unsafe { trainer_store_new(handle.0) })
    }

    /// Returns the address of a network interface of this host, if it has one.
    pub(crate) fn interface_address(name: &str) -> Option<String> {
        let name = c_text(name);
        // SAFETY: the string is alive; the shim returns a string or null.
        unsafe { taken(trainer_interface_address(name.as_ptr())) }
    }
}

/// Copies a string of the shim, and frees the original. Returns `None` if `value` is null.
///
/// # Safety
///
/// A `value` that is not null must be a string of the shim that is not used afterwards.
unsafe fn taken(value: *mut c_char) -> Option<String> {
    if value.is_null() {
        return None;
    }
    // SAFETY: the string ends in a null, and is not used after it is freed.
    unsafe {
        let found = CStr::from_ptr(value).to_string_lossy().into_owned();
        trainer_free(value);
        Some(found)
    }
}

/// A handle to the store, for a thread other than the one that runs the collectives.
#[derive(Debug)]
pub(crate) struct Store(*mut c_void);

// SAFETY: c10d's stores may be used from any thread.
unsafe impl Send for Store {}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: the shim made it, and it is not used again.
        unsafe { trainer_store_free(self.0) };
    }
}

impl Store {
    /// Sets a key of the store, even if it is already set.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<()> {
        let key = c_text(key);
        // SAFETY: the handle and the strings are alive.
        outcome(unsafe { trainer_store_set(self.0, key.as_ptr(), value.as_ptr(), value.len()) })
    }

    /// Reads a key of the store, without waiting for it to be set.
    pub(crate) fn get(&self, key: &str) -> Result<Option<String>> {
        let key = c_text(key);
        let mut value = std::ptr::null_mut();
        // SAFETY: the handle and the string are alive; the shim writes a string or leaves null.
        outcome(unsafe { trainer_store_get(self.0, key.as_ptr(), &raw mut value) })?;
        // SAFETY: the shim wrote the string or left null.
        Ok(unsafe { taken(value) })
    }
}

/// libtorch's `c10d::Reducer`.
#[derive(Debug)]
pub(crate) struct RawReducer {
    it: *mut c_void,
    /// The process group that the reducer uses.
    group: Group,
}

// SAFETY: libtorch itself calls it on the threads of its backward pass.
unsafe impl Send for RawReducer {}

impl RawReducer {
    pub(crate) fn new(
        group: &Group,
        params: &TensorList,
        names: &[String],
        bucket_bytes: i64,
        find_unused: bool,
    ) -> Result<Self> {
        assert_eq!(params.handles.len(), names.len());
        let names: Vec<_> = names.iter().map(|name| c_text(name)).collect();
        let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let mut it = std::ptr::null_mut();
        // SAFETY: the handles and the names are alive, and their number is passed; the shim writes
        // a handle if it returns null.
        group.with(|world| unsafe {
            trainer_reducer_new(
                world,
                params.handles.as_ptr(),
                names.as_ptr(),
                names.len(),
                bucket_bytes,
                find_unused,
                &raw mut it,
            )
        })?;
        Ok(RawReducer { it, group: group.clone() })
    }

    /// Sends gradients in bf16 if `is_bfloat` is set, otherwise in half precision.
    pub(crate) fn compress(&self, is_bfloat: bool) -> Result<()> {
        // SAFETY: both handles are alive.
        self.group.with(|world| unsafe { trainer_reducer_compress(world, self.it, is_bfloat) })
    }

    /// Declares that all backward passes use the same parameters.
    pub(crate) fn set_static_graph(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        outcome(unsafe { trainer_reducer_set_static(self.it) })
    }

    pub(crate) fn prepare(&self, loss: Option<&Tensor>) -> Result<()> {
        let loss = loss.map_or(std::ptr::null(), |loss| loss.as_ptr());
        // SAFETY: the handles are alive.
        outcome(unsafe { trainer_reducer_prepare(self.it, loss) })
    }

    pub(crate) fn finish(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        outcome(unsafe { trainer_reducer_finish(self.it) })
    }

    pub(crate) fn check(&self) -> Result<()> {
        // SAFETY: the handle is alive.
        outcome(unsafe { trainer_reducer_check(self.it) })
    }
}

impl Drop for RawReducer {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let _ = outcome(unsafe { trainer_reducer_free(self.it) });
    }
}

/// An exchange of gradients that are divided among the ranks.
#[derive(Debug)]
pub(crate) struct RawExchange {
    it: *mut c_void,
    group: Group,
}

// SAFETY: the mutex of the group serializes all calls, which may come from the threads of a
// backward pass.
unsafe impl Send for RawExchange {}
// SAFETY: as above.
unsafe impl Sync for RawExchange {}

impl RawExchange {
    /// Creates an exchange of the gradients of these parameters, each of which belongs to a rank.
    pub(crate) fn new(group: &Group, params: &TensorList, owners: &[i32], bucket_bytes: i64) -> Result<Self> {
        assert_eq!(params.handles.len(), owners.len());
        let mut it = std::ptr::null_mut();
        // SAFETY: the handles are alive, and their number is passed, which is that of the owners;
        // the shim writes a handle if it returns null.
        group.with(|world| unsafe {
            trainer_exchange_new(
                world,
                params.handles.as_ptr(),
                owners.as_ptr(),
                owners.len(),
                bucket_bytes,
                &raw mut it,
            )
        })?;
        Ok(RawExchange { it, group: group.clone() })
    }

    /// Begins the pass of a loss, or without one that of the gradients that exist.
    pub(crate) fn begin(
        &self,
        loss: Option<&Tensor>,
        has_sums: bool,
        has_rows: bool,
        may_wait: bool,
    ) -> Result<()> {
        let loss = loss.map_or(std::ptr::null(), |loss| loss.as_ptr());
        // SAFETY: the handles are alive.
        self.group.with(|world| unsafe {
            trainer_exchange_begin(world, self.it, loss, has_sums, has_rows, may_wait)
        })
    }

    /// Notes that the gradient of the parameter with this index, which must exist, is there.
    pub(crate) fn ready(&self, nth: usize) -> Result<()> {
        // SAFETY: both handles are alive, and the caller guarantees that the parameter exists.
        self.group.with(|world| unsafe { trainer_exchange_ready(world, self.it, nth) })
    }

    /// Ends a pass, and returns the number of gradients that this rank has computed in it.
    pub(crate) fn finish(&self) -> Result<usize> {
        let mut computed = 0;
        // SAFETY: both handles are alive; the shim writes a number.
        self.group.with(|world| unsafe { trainer_exchange_finish(world, self.it, &raw mut computed) })?;
        Ok(computed)
    }

    pub(crate) fn abandon(&self) {
        // SAFETY: the handle is alive.
        let _ = self.group.with(|_| unsafe { trainer_exchange_abandon(self.it) });
    }
}

impl Drop for RawExchange {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        unsafe { trainer_exchange_free(self.it) };
    }
}
