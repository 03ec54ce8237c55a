//! Declarations of the C++ functions that [`trainer`](https://docs.rs/trainer) calls in addition to
//! those of torch-sys. They are an implementation detail of `trainer` and are not covered by
//! semver.
//!
//! The functions are documented in the C++ files. Tensors are passed as tch's pointers. A function
//! that can fail returns null on success, and otherwise a message that the caller frees with
//! [`trainer_free`]. No function throws.

#![allow(unsafe_code)]
#![allow(missing_docs, reason = "the C++ files document them")]

use std::ffi::{c_char, c_int, c_void};

pub use torch_sys::C_tensor;

// autocast.cpp
unsafe extern "C" {
    pub fn trainer_autocast_enter(cuda: bool, enabled: bool, half: bool) -> AutocastMode;
    pub fn trainer_autocast_exit(before: AutocastMode);
}

/// The autocast mode of a thread for one type of device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AutocastMode {
    pub cuda: bool,
    pub enabled: bool,
    pub kind: i32,
}

// batch_norm.cpp
unsafe extern "C" {
    pub fn trainer_batch_norm_enter(what: i32) -> i32;
    pub fn trainer_batch_norm_exit(before: i32, single: *mut SingleValue) -> bool;
}

/// The input of a batch normalization that has one value per channel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SingleValue {
    pub running_mean: *const c_void,
    pub dims: usize,
    pub sizes: [i64; 6],
}

// checkpointing.cpp
unsafe extern "C" {
    pub fn trainer_checkpointing_begin(begun: *mut bool) -> *mut c_char;
    pub fn trainer_checkpointing_end() -> *mut c_char;
    pub fn trainer_checkpointing_pause(paused: bool) -> bool;
}

// cuda.cpp
unsafe extern "C" {
    pub fn trainer_cuda_support(support: *mut CudaSupport) -> *mut c_char;
    pub fn trainer_cuda_memory(cuda: i64, memory: *mut CudaMemory) -> *mut c_char;
    pub fn trainer_cuda_reset_peaks(cuda: i64) -> *mut c_char;
    pub fn trainer_cuda_empty_cache() -> *mut c_char;
    pub fn trainer_cuda_bus_id(cuda: i64, text: *mut c_char, size: c_int) -> bool;
    pub fn trainer_event_record(cuda: i64, event: *mut *mut c_void) -> *mut c_char;
    pub fn trainer_event_wait(event: *const c_void) -> *mut c_char;
    pub fn trainer_event_block(event: *const c_void, cuda: i64) -> *mut c_char;
    pub fn trainer_event_free(event: *mut c_void);
    pub fn trainer_stream_enter(cuda: i64) -> *mut c_char;
    pub fn trainer_record_stream(tensor: *const C_tensor) -> *mut c_char;
    pub fn trainer_upload(tensor: *const C_tensor, cuda: i64, copy: *mut *mut C_tensor) -> *mut c_char;
    pub fn trainer_waits_start() -> bool;
    pub fn trainer_waits() -> u64;
    pub fn trainer_waits_imitate();
}

/// The state of CUDA: 0 for available, 1 for a libtorch without CUDA, 2 for no driver, 3 for a
/// driver that is too old, 4 for no GPU, 5 for unknown. The versions are the CUDA version that the
/// driver supports and the one that libtorch needs, with 13000 for 13.0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaSupport {
    pub what: i32,
    pub driver: i32,
    pub needed: i32,
}

/// The memory of a CUDA device in bytes, according to libtorch's allocator.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CudaMemory {
    pub allocated: i64,
    pub peak_allocated: i64,
    pub reserved: i64,
    pub peak_reserved: i64,
}

// draws.cpp
unsafe extern "C" {
    pub fn trainer_draws_start(handle: *mut u64) -> *mut c_char;
    pub fn trainer_draws_stop(handle: u64, drawn: *mut bool) -> *mut c_char;
}

// flops.cpp
unsafe extern "C" {
    pub fn trainer_flops_start(handle: *mut u64) -> *mut c_char;
    pub fn trainer_flops_stop(handle: u64) -> *mut c_char;
    pub fn trainer_flops() -> u64;
}

// graph.cpp
unsafe extern "C" {
    pub fn trainer_leaves(
        of: *const C_tensor,
        push: unsafe extern "C" fn(*mut c_void, *mut C_tensor),
        with: *mut c_void,
        has_gradients: *mut bool,
    ) -> *mut c_char;
    pub fn trainer_changes(of: *const C_tensor) -> u64;
    pub fn trainer_flow_start(handle: *mut u64) -> *mut c_char;
    pub fn trainer_flow_stop(handle: u64) -> *mut c_char;
    pub fn trainer_flow_sources(
        of: *const C_tensor,
        is_trained: bool,
        on: *const *mut C_tensor,
        count: usize,
        found: *mut bool,
        is_known: *mut bool,
    ) -> *mut c_char;
    pub fn trainer_flow_uses(
        of: *const *mut C_tensor,
        count: usize,
        used: *mut bool,
        selects: *mut bool,
        has_failed: *mut bool,
    ) -> *mut c_char;
    pub fn trainer_flow_memory(
        push: unsafe extern "C" fn(*mut c_void, *const c_void, usize),
        with: *mut c_void,
    ) -> *mut c_char;
    pub fn trainer_flow_trains() -> *mut c_char;
}

// heap.cpp
unsafe extern "C" {
    pub fn trainer_heap_is_glibc() -> bool;
    pub fn trainer_heap_limit(map: c_int, trim: c_int, pad: c_int) -> bool;
    pub fn trainer_heap_trim();
}

// linear_cross_entropy.cpp
unsafe extern "C" {
    pub fn trainer_linear_cross_entropy(
        head: *const LinearCrossEntropy,
        loss: *mut *mut C_tensor,
        token_losses: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// The operands of a linear layer and its cross-entropy. `bias` and `class_weights` may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LinearCrossEntropy {
    pub hidden: *const C_tensor,
    pub weight: *const C_tensor,
    pub targets: *const C_tensor,
    pub bias: *const C_tensor,
    pub class_weights: *const C_tensor,
    pub ignored: i64,
    pub smoothing: f64,
}

// memory.cpp
unsafe extern "C" {
    pub fn trainer_memory_count_start(handle: *mut *mut c_void) -> *mut c_char;
    pub fn trainer_memory_count(handle: *mut c_void, bytes: *mut i64, peak: *mut i64);
    pub fn trainer_memory_is_counted(handle: *mut c_void, address: *const c_void) -> bool;
    pub fn trainer_memory_count_stop(handle: *mut c_void);
    pub fn trainer_storage(tensor: *const C_tensor, address: *mut *const c_void, bytes: *mut usize);
}

// monitors.cpp
unsafe extern "C" {
    pub fn trainer_norms(
        tensors: *const *mut C_tensor,
        count: usize,
        norms: *mut *mut C_tensor,
    ) -> *mut c_char;
}

// profiler.cpp
unsafe extern "C" {
    pub fn trainer_profiler_enabled() -> bool;
    pub fn trainer_profiler_start(cuda: bool, shapes: bool) -> *mut c_char;
    pub fn trainer_profiler_stop(path: *const c_char) -> *mut c_char;
}

// scan.cpp
unsafe extern "C" {
    pub fn trainer_scan_new() -> *mut TrainerScan;
    pub fn trainer_scan_free(scan: *mut TrainerScan);
    pub fn trainer_scan(
        scan: *mut TrainerScan,
        tensors: *const *mut C_tensor,
        count: usize,
        gradients: bool,
        marks: bool,
        trusts: bool,
        changed: *mut u32,
        hashes: *mut u64,
        found: *mut usize,
    ) -> *mut c_char;
    pub fn trainer_scan_bytes(bytes: *const u8, count: usize) -> u64;
    pub fn trainer_scan_random(cuda: i64, hash: *mut u64) -> *mut c_char;
    pub fn trainer_cpu_capability(text: *mut c_char, size: usize);
}

/// The properties of a list of tensors.
#[derive(Debug)]
#[repr(C)]
pub struct TrainerScan([u8; 0]);

// tensors.cpp
unsafe extern "C" {
    pub fn trainer_identity(tensor: *const C_tensor) -> *const c_void;
    pub fn trainer_unreadable(tensor: *const C_tensor) -> *mut c_char;
    pub fn trainer_dense(tensor: *const C_tensor, on_host: bool, values: *mut *mut C_tensor) -> *mut c_char;
    pub fn trainer_copy(tensor: *const C_tensor, on_host: bool, copy: *mut *mut C_tensor) -> *mut c_char;
    pub fn trainer_bytes(tensor: *const C_tensor, begin: *mut *const c_void, bytes: *mut usize);
    pub fn trainer_form(tensor: *const C_tensor) -> i32;
    pub fn trainer_rows(tensor: *const C_tensor) -> i64;
    pub fn trainer_lerp(
        from: *const *mut C_tensor,
        to: *const *mut C_tensor,
        count: usize,
        weight: f64,
    ) -> *mut c_char;
}

/// The parameters that a function works on.
#[derive(Debug)]
#[repr(C)]
pub struct Params {
    pub params: *const *mut C_tensor,
    pub count: usize,
    /// Set by the function: the index of the parameter that its error concerns, or `count` if the
    /// error does not concern a single parameter.
    pub current: usize,
}

// gradients.cpp
unsafe extern "C" {
    pub fn trainer_drop_grads(params: *const *mut C_tensor, count: usize) -> *mut c_char;
    pub fn trainer_backward(loss: *const C_tensor, params: *const *mut C_tensor, count: usize)
    -> *mut c_char;
    pub fn trainer_scale_grads(list: *mut Params, factor: f64) -> *mut c_char;
    pub fn trainer_unscale_grads(list: *mut Params, factor: f64, finite: *mut bool) -> *mut c_char;
    pub fn trainer_clip_grad_norm(
        list: *mut Params,
        max_norm: f64,
        total: *const C_tensor,
        norm: *mut *mut C_tensor,
    ) -> *mut c_char;
    pub fn trainer_clip_grad_value(list: *mut Params, max_value: f64) -> *mut c_char;
    pub fn trainer_set_grad(param: *mut C_tensor, grad: *const C_tensor) -> *mut c_char;
    pub fn trainer_on_grad(
        tensor: *const C_tensor,
        is_first: bool,
        call: unsafe extern "C" fn(*const c_void, *mut C_tensor, *mut *mut c_char) -> *mut C_tensor,
        forget: unsafe extern "C" fn(*mut c_void),
        with: *mut c_void,
    ) -> *mut c_char;
    pub fn trainer_on_accumulated(
        leaf: *const C_tensor,
        call: unsafe extern "C" fn(*const c_void, bool, *mut *mut c_char),
        forget: unsafe extern "C" fn(*mut c_void),
        with: *mut c_void,
        handle: *mut *mut c_void,
    ) -> *mut c_char;
    pub fn trainer_accumulated_free(handle: *mut c_void);
}

// modes.cpp
unsafe extern "C" {
    pub fn trainer_free(message: *mut c_char);
    pub fn trainer_version() -> *const c_char;
    pub fn trainer_random_state(cuda: i64, state: *mut *mut C_tensor) -> *mut c_char;
    pub fn trainer_set_random_state(cuda: i64, state: *const C_tensor) -> *mut c_char;
    pub fn trainer_modes() -> ModeFlags;
    pub fn trainer_set_modes(modes: ModeFlags);
    pub fn trainer_record_gradients(record: bool) -> bool;
}

/// The process-wide modes of libtorch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ModeFlags {
    pub deterministic: bool,
    pub deterministic_warns_only: bool,
    pub detects_anomalies: bool,
    pub checks_nan: bool,
    pub benchmarks_cudnn: bool,
    /// 0 for the highest, 1 for high, 2 for medium.
    pub matmul_precision: u8,
}

// optimizers.cpp
unsafe extern "C" {
    pub fn trainer_unfit(param: *const C_tensor) -> *mut c_char;
    pub fn trainer_check_params(list: *mut Params) -> *mut c_char;
    pub fn trainer_memory(param: *const C_tensor, begin: *mut usize, bytes: *mut usize) -> bool;
    pub fn trainer_sgd(lists: *mut Lists, with: *const Sgd) -> *mut c_char;
    pub fn trainer_adam(lists: *mut Lists, with: *const Adam) -> *mut c_char;
    pub fn trainer_adagrad(lists: *mut Lists, with: *const Adagrad) -> *mut c_char;
    pub fn trainer_rmsprop(lists: *mut Lists, with: *const RmsProp) -> *mut c_char;
    pub fn trainer_lion(lists: *mut Lists, with: *const Lion) -> *mut c_char;
    pub fn trainer_muon(lists: *mut Lists, with: *const Muon) -> *mut c_char;
}

/// The tensors that one step of an optimizer works on: the parameters, their state, and their step
/// counts.
#[derive(Debug)]
#[repr(C)]
pub struct Lists {
    pub params: *const *mut C_tensor,
    pub state: [*const *mut C_tensor; 3],
    pub steps: *const *mut C_tensor,
    pub count: usize,
    /// Set by the kernel: the index of the parameter that its error concerns, or `count` if the
    /// error does not concern a single parameter.
    pub current: usize,
}

/// The settings of one SGD step.
#[derive(Debug)]
#[repr(C)]
pub struct Sgd {
    pub lr: f64,
    pub momentum: f64,
    pub dampening: f64,
    pub weight_decay: f64,
    pub nesterov: bool,
    pub maximize: bool,
}

/// The settings of one Adam step, or of one AdamW step if `decoupled`.
#[derive(Debug)]
#[repr(C)]
pub struct Adam {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub decoupled: bool,
    pub amsgrad: bool,
    pub maximize: bool,
}

/// The settings of one Adagrad step.
#[derive(Debug)]
#[repr(C)]
pub struct Adagrad {
    pub lr: f64,
    pub lr_decay: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub maximize: bool,
}

/// The settings of one RMSprop step.
#[derive(Debug)]
#[repr(C)]
pub struct RmsProp {
    pub lr: f64,
    pub alpha: f64,
    pub eps: f64,
    pub momentum: f64,
    pub weight_decay: f64,
    pub maximize: bool,
}

/// The settings of one Lion step.
#[derive(Debug)]
#[repr(C)]
pub struct Lion {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub weight_decay: f64,
    pub maximize: bool,
}

/// The settings of one Muon step.
#[derive(Debug)]
#[repr(C)]
pub struct Muon {
    pub lr: f64,
    pub momentum: f64,
    pub eps: f64,
    pub weight_decay: f64,
    pub ns_steps: i64,
    pub nesterov: bool,
    pub full_precision: bool,
    pub match_rms_adamw: bool,
    pub maximize: bool,
}

// warnings.cpp
unsafe extern "C" {
    pub fn trainer_warnings_begin() -> *mut c_char;
    pub fn trainer_warnings_end();
    pub fn trainer_warnings_next() -> *mut c_char;
    pub fn trainer_losses_start(handle: *mut u64) -> *mut c_char;
    pub fn trainer_losses_stop(handle: u64) -> *mut c_char;
}
