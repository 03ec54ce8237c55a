//! Declarations of the C++ functions that [`trainer`](https://docs.rs/trainer) uses to call
//! libtorch's c10d. They are an implementation detail of `trainer` and are not covered by semver.
//!
//! The conventions are those of [`trainer_sys`].

#![allow(unsafe_code)]
#![allow(missing_docs, reason = "the C++ files document them")]

use std::ffi::{c_char, c_void};

use trainer_sys::C_tensor;

unsafe extern "C" {
    pub fn trainer_world_open(with: *const WorldOptions, opened: *mut *mut c_void) -> *mut c_char;
    pub fn trainer_world_connect(world: *mut c_void) -> *mut c_char;
    pub fn trainer_world_set_shared(
        world: *mut c_void,
        key: *const c_char,
        bytes: *const u8,
        count: usize,
    ) -> *mut c_char;
    pub fn trainer_world_shared(
        world: *mut c_void,
        key: *const c_char,
        value: *mut *mut c_char,
    ) -> *mut c_char;
    pub fn trainer_world_count(world: *mut c_void, key: *const c_char, sum: *mut i64) -> *mut c_char;
    pub fn trainer_open_files(needed: u64) -> u64;
    pub fn trainer_world_close(world: *mut c_void);
    pub fn trainer_world_leave(world: *mut c_void) -> *mut c_char;
    pub fn trainer_world_all_reduce(
        world: *mut c_void,
        group: i32,
        tensor: *mut C_tensor,
        op: i32,
    ) -> *mut c_char;
    pub fn trainer_world_broadcast(
        world: *mut c_void,
        tensors: *const *mut C_tensor,
        count: usize,
        root: i32,
    ) -> *mut c_char;
    pub fn trainer_world_all_gather(
        world: *mut c_void,
        input: *mut C_tensor,
        output: *mut C_tensor,
    ) -> *mut c_char;
    pub fn trainer_world_reduce_scatter(
        world: *mut c_void,
        input: *mut C_tensor,
        output: *mut C_tensor,
    ) -> *mut c_char;
    pub fn trainer_world_batch_norm(
        world: *mut c_void,
        with: *const RawBatchNorm,
        normalized: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn trainer_world_set(
        world: *mut c_void,
        key: *const c_char,
        bytes: *const u8,
        count: usize,
    ) -> *mut c_char;
    pub fn trainer_world_get(world: *mut c_void, key: *const c_char, value: *mut *mut c_char) -> *mut c_char;
    pub fn trainer_store_new(world: *mut c_void) -> *mut c_void;
    pub fn trainer_store_free(store: *mut c_void);
    pub fn trainer_store_set(
        store: *mut c_void,
        key: *const c_char,
        bytes: *const u8,
        count: usize,
    ) -> *mut c_char;
    pub fn trainer_store_get(store: *mut c_void, key: *const c_char, value: *mut *mut c_char) -> *mut c_char;
    pub fn trainer_interface_address(name: *const c_char) -> *mut c_char;
    pub fn trainer_reducer_new(
        world: *mut c_void,
        params: *const *mut C_tensor,
        names: *const *const c_char,
        count: usize,
        bucket_bytes: i64,
        find_unused: bool,
        made: *mut *mut c_void,
    ) -> *mut c_char;
    pub fn trainer_reducer_compress(world: *mut c_void, it: *mut c_void, is_bfloat: bool) -> *mut c_char;
    pub fn trainer_reducer_set_static(it: *mut c_void) -> *mut c_char;
    pub fn trainer_reducer_prepare(it: *mut c_void, loss: *const C_tensor) -> *mut c_char;
    pub fn trainer_reducer_finish(it: *mut c_void) -> *mut c_char;
    pub fn trainer_reducer_check(it: *mut c_void) -> *mut c_char;
    pub fn trainer_reducer_free(it: *mut c_void) -> *mut c_char;
    pub fn trainer_exchange_new(
        world: *mut c_void,
        params: *const *mut C_tensor,
        owners: *const i32,
        count: usize,
        bucket_bytes: i64,
        made: *mut *mut c_void,
    ) -> *mut c_char;
    pub fn trainer_exchange_begin(
        world: *mut c_void,
        it: *mut c_void,
        loss: *const C_tensor,
        has_sums: bool,
        has_rows: bool,
        may_wait: bool,
    ) -> *mut c_char;
    pub fn trainer_exchange_ready(world: *mut c_void, it: *mut c_void, nth: usize) -> *mut c_char;
    pub fn trainer_exchange_finish(world: *mut c_void, it: *mut c_void, computed: *mut usize) -> *mut c_char;
    pub fn trainer_exchange_abandon(it: *mut c_void) -> *mut c_char;
    pub fn trainer_exchange_free(it: *mut c_void);
}

/// Batch normalization with the statistics of all ranks. `weight` and `bias` may be null.
#[derive(Debug)]
#[repr(C)]
pub struct RawBatchNorm {
    pub input: *const C_tensor,
    pub weight: *const C_tensor,
    pub bias: *const C_tensor,
    pub mean: *const C_tensor,
    pub variance: *const C_tensor,
    pub eps: f64,
    pub count: f64,
    pub counts: bool,
}

/// Where and how the ranks connect. `file`, `interface` and `own_host` may be null.
#[derive(Debug)]
#[repr(C)]
pub struct WorldOptions {
    pub host: *const c_char,
    pub file: *const c_char,
    pub prefix: *const c_char,
    pub interface: *const c_char,
    pub own_host: *const c_char,
    pub timeout_ms: i64,
    pub port: i32,
    pub rank: i32,
    pub size: i32,
    pub is_server: bool,
}
