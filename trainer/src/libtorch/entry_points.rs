//! A test that calls every function of `trainer-sys` and `trainer-c10d-sys`. `make sanitize` runs
//! it with the sanitizers.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "a test that reads sources, and whose output `make sanitize` reads"
)]

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use tch::{Device, Kind, Tensor};
use trainer_sys::*;

use super::text_of;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Returns the names of the functions that a package declares.
fn declared(package: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src/lib.rs");
    let text = std::fs::read_to_string(path).unwrap();
    let names = text.split("pub fn trainer_").skip(1);
    let names = names.map(|rest| format!("trainer_{}", rest.split('(').next().unwrap()));
    names.collect()
}

/// Calls a function, and adds its name to the functions that were called.
macro_rules! call {
    ($called:ident, $function:ident($($argument:expr),* $(,)?)) => {{
        $called.insert(stringify!($function).to_owned());
        // SAFETY: the arguments satisfy the contract of the function, which its wrapper in this
        // module documents: handles are alive, counts are those of the lists, and outputs can be
        // written to.
        unsafe { $function($($argument),*) }
    }};
}

/// Returns the text of a message, or an empty text.
fn text(message: *mut c_char) -> String {
    if message.is_null() { String::new() } else { text_of(message) }
}

/// Panics if the message is not null.
#[track_caller]
fn succeeds(message: *mut c_char) {
    let text = text(message);
    assert!(text.is_empty(), "{text}");
}

/// Panics unless the message contains `expected`.
#[track_caller]
fn fails(message: *mut c_char, expected: &str) {
    assert!(!message.is_null(), "succeeded, but should fail with `{expected}`");
    let text = text(message);
    assert!(text.contains(expected), "{text}");
}

/// Takes ownership of a tensor that a function returned.
fn owned(handle: *mut C_tensor) -> Tensor {
    assert!(!handle.is_null());
    // SAFETY: the function wrote a handle that nothing else owns.
    unsafe { Tensor::from_ptr(handle) }
}

fn handles(tensors: &[Tensor]) -> Vec<*mut C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr().cast_mut()).collect()
}

unsafe extern "C" fn doubles(
    _: *const c_void,
    gradient: *mut C_tensor,
    _: *mut *mut c_char,
) -> *mut C_tensor {
    let gradient = owned(gradient);
    std::mem::ManuallyDrop::new(gradient * 2.0).as_ptr().cast_mut()
}

thread_local! {
    /// The number of gradients that were accumulated.
    static NOTED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

unsafe extern "C" {
    fn strdup(text: *const c_char) -> *mut c_char;
}

/// Refuses the second gradient.
unsafe extern "C" fn notes(_: *const c_void, is_defined: bool, message: *mut *mut c_char) {
    assert!(is_defined);
    NOTED.set(NOTED.get() + 1);
    if NOTED.get() == 2 {
        // SAFETY: the text ends in a null, and the caller passes a place for it.
        unsafe { *message = strdup(c"it is refused".as_ptr()) };
    }
}

unsafe extern "C" fn forgets(with: *mut c_void) {
    // SAFETY: `with` came from a box, and is forgotten once.
    drop(unsafe { Box::from_raw(with.cast::<Vec<u8>>()) });
}

fn call_tensors(called: &mut BTreeSet<String>) {
    let x = Tensor::arange(6, FLOAT).view([2, 3]);
    let of_x = x.as_ptr();
    fails(call!(called, trainer_unfit(Tensor::new().as_ptr())), "undefined");
    succeeds(call!(called, trainer_unfit(of_x)));
    assert!(!call!(called, trainer_version()).is_null());
    assert_eq!(
        call!(called, trainer_identity(of_x)),
        call!(called, trainer_identity(x.shallow_clone().as_ptr()))
    );
    let (mut begin, mut bytes) = (0, 0);
    assert!(call!(called, trainer_memory(of_x, &raw mut begin, &raw mut bytes)));
    assert_eq!((begin, bytes), (x.data_ptr().addr(), 24));
    assert!(!call!(called, trainer_memory(x.tr().narrow(0, 0, 1).as_ptr(), &raw mut begin, &raw mut bytes)));
    assert_eq!(call!(called, trainer_rows(of_x)), 2);
    assert_eq!(call!(called, trainer_rows(Tensor::new().as_ptr())), -1);

    let sparse = x.to_sparse_sparse_dim(2);
    let lazy = Tensor::internal_efficientzerotensor([2, 3], FLOAT);
    for (tensor, form) in [(&x, 0), (&Tensor::new(), 1), (&sparse, 3), (&x.to_mkldnn(), 4), (&lazy, 0)] {
        assert_eq!(call!(called, trainer_form(tensor.as_ptr())), form);
    }
    succeeds(call!(called, trainer_unreadable(sparse.as_ptr())));
    fails(call!(called, trainer_unreadable(Tensor::new().as_ptr())), "undefined");
    for (tensor, on_host) in [(&x, true), (&sparse, true), (&lazy, false), (&x.tr(), true)] {
        let mut values = null_mut();
        succeeds(call!(called, trainer_dense(tensor.as_ptr(), on_host, &raw mut values)));
        let values = owned(values);
        let (mut begin, mut count) = (null(), 0);
        call!(called, trainer_bytes(values.as_ptr(), &raw mut begin, &raw mut count));
        assert_eq!(count, 24);
        // SAFETY: the function wrote the address and the number of the bytes of `values`.
        let bytes = unsafe { std::slice::from_raw_parts(begin.cast::<u8>(), count) };
        assert_eq!(
            bytes.iter().map(|byte| usize::from(*byte)).max(),
            Some(bytes.iter().copied().max().unwrap().into())
        );
    }
    for tensor in [&x, &sparse, &lazy, &x.to_sparse_csr(None), &x.to_mkldnn()] {
        let mut copy = null_mut();
        succeeds(call!(called, trainer_copy(tensor.as_ptr(), true, &raw mut copy)));
        assert_eq!(owned(copy).size(), [2, 3]);
    }
    let mut values = null_mut();
    fails(call!(called, trainer_copy(Tensor::new().as_ptr(), true, &raw mut values)), "undefined");
    fails(call!(called, trainer_dense(Tensor::new().as_ptr(), true, &raw mut values)), "undefined");

    for size in [6, 40_000] {
        let [from, to] = [0.0, 1.0].map(|value| Tensor::full([size], value, FLOAT));
        let [starts, ends] = [&from, &to].map(|tensor| [tensor.as_ptr().cast_mut()]);
        for weight in [0.25, 0.75] {
            succeeds(call!(called, trainer_lerp(starts.as_ptr(), ends.as_ptr(), 1, weight)));
        }
        assert_eq!(from, Tensor::full([size], 0.8125, FLOAT));
    }
    // Without memory of its own, and not writable.
    let [from, to] = [&lazy, &x].map(|tensor| [tensor.as_ptr().cast_mut()]);
    drop(text(call!(called, trainer_lerp(from.as_ptr(), to.as_ptr(), 1, 0.5))));

    let lists = [vec![], vec![x.shallow_clone(), sparse.shallow_clone(), x.to_kind(Kind::Int)]];
    for list in lists {
        let mut norms = null_mut();
        let of_list = handles(&list);
        succeeds(call!(called, trainer_norms(of_list.as_ptr(), list.len(), &raw mut norms)));
        assert_eq!(owned(norms).numel(), list.len());
    }
    let mut norms = null_mut();
    let undefined = [Tensor::new()];
    fails(call!(called, trainer_norms(handles(&undefined).as_ptr(), 1, &raw mut norms)), "undefined");
}

fn call_losses(called: &mut BTreeSet<String>) {
    // Several chunks of rows, and tiles of classes in half precision.
    for (kind, rows, classes) in
        [(Kind::Float, 1100, 16_400), (Kind::BFloat16, 600, 16_400), (Kind::Double, 0, 3)]
    {
        let normal = |size: &[i64]| Tensor::randn(size, FLOAT).to_kind(kind).set_requires_grad(true);
        let [hidden, weight, bias] = [&[rows, 4][..], &[classes, 4], &[classes]].map(normal);
        let targets = Tensor::randint(3, [rows], (Kind::Int64, Device::Cpu));
        let class_weights = Tensor::ones([classes], (kind, Device::Cpu));
        let mut head = LinearCrossEntropy {
            hidden: hidden.as_ptr(),
            weight: weight.as_ptr(),
            targets: targets.as_ptr(),
            bias: bias.as_ptr(),
            class_weights: class_weights.as_ptr(),
            ignored: 1,
            smoothing: 0.1,
        };
        let mut outputs = [null_mut(), null_mut()];
        let [loss, losses] = &mut outputs;
        succeeds(call!(called, trainer_linear_cross_entropy(&raw const head, loss, losses)));
        let [loss, losses] = outputs.map(owned);
        loss.backward();
        assert_eq!((weight.grad().size(), losses.size()), (vec![classes, 4], vec![rows]));
        if rows > 0 {
            let wrong = &targets + classes;
            head.targets = wrong.as_ptr();
            let [loss, losses] = &mut outputs;
            fails(call!(called, trainer_linear_cross_entropy(&raw const head, loss, losses)), "not a class");
        }
    }
}

fn call_gradients(called: &mut BTreeSet<String>) {
    let params: Vec<Tensor> =
        (1..4).map(|nth| Tensor::ones([nth, 2], FLOAT).set_requires_grad(true)).collect();
    let of_params = handles(&params);
    let list = || Params { params: of_params.as_ptr(), count: 3, current: 3 };
    succeeds(call!(called, trainer_check_params(std::ptr::from_mut(&mut list()))));
    let loss = || {
        params
            .iter()
            .map(|param| param.square().sum(Kind::Float))
            .fold(Tensor::from(0f32), |sum, one| sum + one)
    };
    succeeds(call!(called, trainer_backward(loss().as_ptr(), of_params.as_ptr(), 3)));
    succeeds(call!(called, trainer_scale_grads(std::ptr::from_mut(&mut list()), 2.0)));
    let mut finite = false;
    succeeds(call!(called, trainer_unscale_grads(std::ptr::from_mut(&mut list()), 0.5, &raw mut finite)));
    assert!(finite);
    let mut norm = null_mut();
    succeeds(call!(
        called,
        trainer_clip_grad_norm(std::ptr::from_mut(&mut list()), 1.0, null(), &raw mut norm)
    ));
    assert!(owned(norm).double_value(&[]) > 1.0);
    succeeds(call!(called, trainer_clip_grad_value(std::ptr::from_mut(&mut list()), 1e-3)));
    succeeds(call!(called, trainer_drop_grads(of_params.as_ptr(), 3)));
    assert!(!params[0].grad().defined());
    succeeds(call!(called, trainer_set_grad(of_params[0], Tensor::ones([1, 2], FLOAT).as_ptr())));
    fails(call!(called, trainer_set_grad(of_params[0], Tensor::ones([2, 2], FLOAT).as_ptr())), "shape");
    assert!(params[0].grad().defined());

    let hidden = &params[0] * 1.0;
    let owned_by_hook = || Box::into_raw(Box::new(vec![1u8; 100])).cast::<c_void>();
    for (tensor, is_first) in [(&params[1], false), (&hidden, true), (&hidden, true), (&Tensor::new(), true)]
    {
        let message =
            call!(called, trainer_on_grad(tensor.as_ptr(), is_first, doubles, forgets, owned_by_hook()));
        assert_eq!(text(message).is_empty(), tensor.defined());
    }
    let mut on_accumulated = |tensor: &Tensor| {
        let mut handle = null_mut();
        let tensor = tensor.as_ptr();
        let with = owned_by_hook();
        let message = call!(called, trainer_on_accumulated(tensor, notes, forgets, with, &raw mut handle));
        (text(message), handle)
    };
    assert!(on_accumulated(&Tensor::new()).0.contains("undefined"));
    assert!(on_accumulated(&hidden).0.contains("not a leaf"));
    let [(_, kept), (_, freed)] = [on_accumulated(&params[1]), on_accumulated(&params[1])];
    call!(called, trainer_accumulated_free(freed));
    (hidden.sum(Kind::Float) + params[1].sum(Kind::Float)).backward();
    assert_eq!(params[1].grad(), Tensor::full([2, 2], 2.0, FLOAT));
    assert_eq!(NOTED.get(), 1);
    let backward = || params[1].sum(Kind::Float).f_backward().map_err(|error| error.to_string());
    assert!(backward().unwrap_err().contains("it is refused"));
    call!(called, trainer_accumulated_free(kept));
    backward().unwrap();
    assert_eq!(NOTED.get(), 2);

    let before = call!(called, trainer_record_gradients(false));
    assert!(before && !call!(called, trainer_record_gradients(true)));
}

fn call_optimizers(called: &mut BTreeSet<String>) {
    for kind in [Kind::Float, Kind::BFloat16] {
        let params = [Tensor::ones([4, 2], (kind, Device::Cpu)).set_requires_grad(true)];
        params[0].square().sum(kind).backward();
        let state: Vec<[Tensor; 1]> = (0..3).map(|_| [Tensor::zeros([4, 2], FLOAT)]).collect();
        let state_handles: Vec<_> = state.iter().map(|list| handles(list)).collect();
        let steps = [Tensor::zeros([] as [i64; 0], FLOAT)];
        let (of_params, of_steps) = (handles(&params), handles(&steps));
        let lists = |count: usize, with_steps: bool| {
            let mut state = [null(); 3];
            (0..count).for_each(|nth| state[nth] = state_handles[nth].as_ptr());
            let steps = if with_steps { of_steps.as_ptr() } else { null() };
            Lists { params: of_params.as_ptr(), state, steps, count: 1, current: 1 }
        };
        let sgd = Sgd {
            lr: 0.1,
            momentum: 0.9,
            dampening: 0.1,
            weight_decay: 0.1,
            nesterov: false,
            maximize: false,
        };
        succeeds(call!(called, trainer_sgd(std::ptr::from_mut(&mut lists(1, true)), &raw const sgd)));
        let adam = Adam {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            amsgrad: true,
            maximize: false,
        };
        succeeds(call!(called, trainer_adam(std::ptr::from_mut(&mut lists(3, true)), &raw const adam)));
        let adagrad = Adagrad { lr: 0.1, lr_decay: 0.1, eps: 1e-8, weight_decay: 0.1, maximize: false };
        succeeds(call!(called, trainer_adagrad(std::ptr::from_mut(&mut lists(1, true)), &raw const adagrad)));
        let rms_prop =
            RmsProp { lr: 0.1, alpha: 0.9, eps: 1e-8, momentum: 0.9, weight_decay: 0.1, maximize: true };
        succeeds(call!(
            called,
            trainer_rmsprop(std::ptr::from_mut(&mut lists(3, false)), &raw const rms_prop)
        ));
        let lion = Lion { lr: 0.1, beta1: 0.9, beta2: 0.99, weight_decay: 0.1, maximize: false };
        succeeds(call!(called, trainer_lion(std::ptr::from_mut(&mut lists(1, false)), &raw const lion)));
        let muon = Muon {
            lr: 0.1,
            momentum: 0.9,
            eps: 1e-7,
            weight_decay: 0.1,
            ns_steps: 5,
            nesterov: true,
            full_precision: true,
            match_rms_adamw: true,
            maximize: false,
        };
        succeeds(call!(called, trainer_muon(std::ptr::from_mut(&mut lists(1, false)), &raw const muon)));
    }
}

fn call_modes(called: &mut BTreeSet<String>) {
    let before = call!(called, trainer_autocast_enter(false, true, false));
    let product = Tensor::ones([2, 2], FLOAT).matmul(&Tensor::ones([2, 2], FLOAT));
    assert_eq!(product.kind(), Kind::BFloat16);
    call!(called, trainer_autocast_exit(before));
    let modes = call!(called, trainer_modes());
    call!(called, trainer_set_modes(ModeFlags { detects_anomalies: true, matmul_precision: 1, ..modes }));
    call!(called, trainer_set_modes(modes));
    // With the sanitizers, memory comes from their allocator, and glibc's limits change nothing.
    call!(called, trainer_heap_is_glibc());
    call!(called, trainer_heap_limit(32 << 20, 64 << 20, 128 << 10));
    call!(called, trainer_heap_trim());

    let mut count = null_mut();
    succeeds(call!(called, trainer_memory_count_start(&raw mut count)));
    let counted = Tensor::ones([1000], FLOAT);
    let (mut bytes, mut peak) = (0, 0);
    call!(called, trainer_memory_count(count, &raw mut bytes, &raw mut peak));
    assert!(bytes >= 4000 && peak >= bytes);
    let (mut address, mut size) = (null(), 0);
    call!(called, trainer_storage(counted.as_ptr(), &raw mut address, &raw mut size));
    assert!(!address.is_null() && size == 4000);
    assert!(call!(called, trainer_memory_is_counted(count, address)));
    call!(called, trainer_memory_count_stop(count));

    let mut state = null_mut();
    succeeds(call!(called, trainer_random_state(-1, &raw mut state)));
    let state = owned(state);
    succeeds(call!(called, trainer_set_random_state(-1, state.as_ptr())));
    let mut handle = 0;
    succeeds(call!(called, trainer_draws_start(&raw mut handle)));
    drop(Tensor::rand([1], FLOAT));
    let mut drawn = false;
    succeeds(call!(called, trainer_draws_stop(handle, &raw mut drawn)));
    assert!(drawn);

    succeeds(call!(called, trainer_flops_start(&raw mut handle)));
    let before = call!(called, trainer_flops());
    drop(Tensor::ones([2, 3], FLOAT).matmul(&Tensor::ones([3, 4], FLOAT)));
    assert_eq!(call!(called, trainer_flops()) - before, 48);
    succeeds(call!(called, trainer_flops_stop(handle)));

    assert!(!call!(called, trainer_profiler_enabled()));
    let path = std::env::temp_dir().join(format!("trainer-entry-points-{}.json", std::process::id()));
    let name = CString::new(path.to_str().unwrap()).unwrap();
    succeeds(call!(called, trainer_profiler_start(false, true)));
    drop(Tensor::ones([2, 3], FLOAT) + 1.0);
    succeeds(call!(called, trainer_profiler_stop(name.as_ptr())));
    assert!(std::fs::remove_file(path).is_ok());
}

fn call_checkpointing(called: &mut BTreeSet<String>) {
    let weight = Tensor::ones([3], FLOAT).set_requires_grad(true);
    let mut begun = false;
    succeeds(call!(called, trainer_checkpointing_begin(&raw mut begun)));
    assert!(begun);
    let hidden = weight.exp();
    assert!(!call!(called, trainer_checkpointing_pause(true)));
    drop(&weight * 1.0);
    assert!(call!(called, trainer_checkpointing_pause(false)));
    let loss = hidden.sin().sum(Kind::Float);
    succeeds(call!(called, trainer_checkpointing_end()));
    loss.backward();
    assert!(weight.grad().defined());
}

fn call_scan(called: &mut BTreeSet<String>) {
    let scan = call!(called, trainer_scan_new());
    let tensors = [
        Tensor::ones([100], FLOAT),
        Tensor::new(),
        Tensor::ones([3, 3], FLOAT).tr().internal_neg_view(),
        Tensor::eye(3, FLOAT).to_sparse_sparse_dim(2),
        Tensor::internal_efficientzerotensor([2, 3], FLOAT),
        Tensor::ones([3], FLOAT).quantize_per_tensor(0.5, 0, Kind::QInt8),
        Tensor::zeros([0, 3], FLOAT),
    ];
    let list = handles(&tensors);
    let mut places = [0; 7];
    let mut hashes = [0; 7];
    for (count, trusts, expected) in [(7, true, 6), (7, true, 0), (7, false, 0), (2, true, 5), (7, true, 5)] {
        let mut found = 0;
        succeeds(call!(
            called,
            trainer_scan(
                scan,
                list.as_ptr(),
                count,
                false,
                true,
                trusts,
                places.as_mut_ptr(),
                hashes.as_mut_ptr(),
                &raw mut found,
            )
        ));
        assert_eq!(found, expected, "{count} {trusts}");
    }
    call!(called, trainer_scan_free(scan));
    let bytes = [7u8; 100];
    for count in [0, 1, 63, 64, 65, 100] {
        assert_ne!(call!(called, trainer_scan_bytes(bytes.as_ptr(), count)), 0);
    }
    let mut hash = 0;
    succeeds(call!(called, trainer_scan_random(-1, &raw mut hash)));
    assert_ne!(hash, 0);
    let mut text: [c_char; 8] = [1; 8];
    call!(called, trainer_cpu_capability(text.as_mut_ptr(), 4));
    assert_eq!(text[3..5], [0, 1]);
}

/// Without a GPU, these return messages.
fn call_cuda(called: &mut BTreeSet<String>) {
    let mut support = CudaSupport::default();
    succeeds(call!(called, trainer_cuda_support(&raw mut support)));
    let mut id: [c_char; 16] = [0; 16];
    let has_gpu = support.what == 0;
    let is_outcome = |message| assert_eq!(text(message).is_empty(), has_gpu);
    assert_eq!(call!(called, trainer_cuda_bus_id(0, id.as_mut_ptr(), 16)), has_gpu);
    let mut memory = CudaMemory::default();
    is_outcome(call!(called, trainer_cuda_memory(0, &raw mut memory)));
    is_outcome(call!(called, trainer_cuda_reset_peaks(0)));
    drop(text(call!(called, trainer_cuda_empty_cache())));
    let mut event = null_mut();
    is_outcome(call!(called, trainer_event_record(0, &raw mut event)));
    if has_gpu {
        succeeds(call!(called, trainer_event_wait(event)));
        succeeds(call!(called, trainer_event_block(event, 0)));
    } else {
        // They need an event of a GPU.
        called.extend(["trainer_event_wait", "trainer_event_block"].map(str::to_owned));
    }
    call!(called, trainer_event_free(event));
    is_outcome(call!(called, trainer_stream_enter(0)));
    let x = Tensor::ones([2], FLOAT);
    fails(call!(called, trainer_record_stream(x.as_ptr())), "");
    let mut copy = null_mut();
    is_outcome(call!(called, trainer_upload(x.as_ptr(), 0, &raw mut copy)));
    if has_gpu {
        drop(owned(copy));
    }
    assert!(call!(called, trainer_waits_start()));
    let before = call!(called, trainer_waits());
    call!(called, trainer_waits_imitate());
    assert!(call!(called, trainer_waits()) > before);
}

#[cfg(feature = "distributed")]
fn call_world(called: &mut BTreeSet<String>) {
    use trainer_c10d_sys::*;

    let file = std::env::temp_dir().join(format!("trainer-entry-points-{}", std::process::id()));
    let file = CString::new(file.to_str().unwrap()).unwrap();
    let with = WorldOptions {
        host: c"localhost".as_ptr(),
        file: file.as_ptr(),
        prefix: c"test".as_ptr(),
        interface: null(),
        own_host: c"127.0.0.1".as_ptr(),
        timeout_ms: 10_000,
        port: 0,
        rank: 0,
        size: 1,
        is_server: true,
    };
    let mut world = null_mut();
    succeeds(call!(called, trainer_world_open(&raw const with, &raw mut world)));
    let mut value = null_mut();
    succeeds(call!(called, trainer_world_set_shared(world, c"shared".as_ptr(), b"job".as_ptr(), 3)));
    succeeds(call!(called, trainer_world_shared(world, c"shared".as_ptr(), &raw mut value)));
    assert_eq!(text(std::mem::replace(&mut value, null_mut())), "job");
    let mut sum = 0;
    succeeds(call!(called, trainer_world_count(world, c"count".as_ptr(), &raw mut sum)));
    assert_eq!(sum, 1);
    assert!(call!(called, trainer_open_files(1)) >= 1);
    succeeds(call!(called, trainer_world_set(world, c"key".as_ptr(), b"one".as_ptr(), 3)));
    succeeds(call!(called, trainer_world_get(world, c"key".as_ptr(), &raw mut value)));
    assert_eq!(text(std::mem::replace(&mut value, null_mut())), "one");
    let store = call!(called, trainer_store_new(world));
    succeeds(call!(called, trainer_store_set(store, c"key".as_ptr(), b"two".as_ptr(), 3)));
    succeeds(call!(called, trainer_store_get(store, c"key".as_ptr(), &raw mut value)));
    assert_eq!(text(value), "two");
    let address = call!(called, trainer_interface_address(c"lo".as_ptr()));
    drop(text(address));
    assert!(call!(called, trainer_interface_address(c"none".as_ptr())).is_null());

    let x = Tensor::arange(4, FLOAT);
    let of_x = x.as_ptr().cast_mut();
    fails(call!(called, trainer_world_all_reduce(world, 0, of_x, 0)), "has left");
    succeeds(call!(called, trainer_world_connect(world)));
    for group in [0, 1] {
        succeeds(call!(called, trainer_world_all_reduce(world, group, of_x, 0)));
    }
    let list = [x.shallow_clone(), Tensor::ones([3], FLOAT)];
    succeeds(call!(called, trainer_world_broadcast(world, handles(&list).as_ptr(), 2, 0)));
    let out = Tensor::zeros([4], FLOAT);
    succeeds(call!(called, trainer_world_all_gather(world, of_x, out.as_ptr().cast_mut())));
    assert_eq!(out, x);
    let out = Tensor::zeros([4], FLOAT);
    succeeds(call!(called, trainer_world_reduce_scatter(world, of_x, out.as_ptr().cast_mut())));
    assert_eq!(out, x);

    let input = Tensor::arange(12, FLOAT).view([4, 3]).set_requires_grad(true);
    let [mean, variance, ones] = [0.5, 2.0, 1.0].map(|value| Tensor::full([3], value, FLOAT));
    let weight = ones.copy().set_requires_grad(true);
    for weight in [None, Some(&weight)] {
        let optional = weight.map_or(null(), Tensor::as_ptr);
        let with = RawBatchNorm {
            input: input.as_ptr(),
            weight: optional,
            bias: optional,
            mean: mean.as_ptr(),
            variance: variance.as_ptr(),
            eps: 1e-5,
            count: 4.0,
            counts: true,
        };
        let mut normalized = null_mut();
        succeeds(call!(called, trainer_world_batch_norm(world, &raw const with, &raw mut normalized)));
        owned(normalized).square().sum(Kind::Float).backward();
    }
    assert!(input.grad().defined());

    let params = [Tensor::ones([3], FLOAT).set_requires_grad(true)];
    let of_params = handles(&params);
    // In buckets of one element, and in one bucket.
    for bytes in [4, 1 << 20] {
        let mut exchange = null_mut();
        succeeds(call!(
            called,
            trainer_exchange_new(world, of_params.as_ptr(), [0].as_ptr(), 1, bytes, &raw mut exchange)
        ));
        for (has_sums, expected) in [(false, 2.0), (true, 4.0)] {
            let loss = params[0].square().sum(Kind::Float);
            let of_loss = loss.as_ptr();
            succeeds(call!(called, trainer_exchange_begin(world, exchange, of_loss, has_sums, true, true)));
            loss.backward();
            succeeds(call!(called, trainer_exchange_ready(world, exchange, 0)));
            fails(call!(called, trainer_exchange_ready(world, exchange, 0)), "twice");
            let mut computed = 0;
            succeeds(call!(called, trainer_exchange_finish(world, exchange, &raw mut computed)));
            assert_eq!((computed, params[0].grad()), (1, Tensor::full([3], expected, FLOAT)));
        }
        succeeds(call!(called, trainer_exchange_begin(world, exchange, null(), true, true, true)));
        succeeds(call!(called, trainer_exchange_abandon(exchange)));
        assert!(!params[0].grad().defined());
        call!(called, trainer_exchange_free(exchange));
    }
    for (is_static, compresses, leaves) in [(false, false, false), (false, true, false), (true, false, true)]
    {
        let mut reducer = null_mut();
        let names = [c"w".as_ptr()];
        succeeds(call!(
            called,
            trainer_reducer_new(
                world,
                of_params.as_ptr(),
                names.as_ptr(),
                1,
                1 << 20,
                false,
                &raw mut reducer,
            )
        ));
        if compresses {
            succeeds(call!(called, trainer_reducer_compress(world, reducer, true)));
        }
        if is_static {
            succeeds(call!(called, trainer_reducer_set_static(reducer)));
        }
        let loss = (&params[0] * &params[0]).sum(Kind::Float);
        succeeds(call!(
            called,
            trainer_reducer_prepare(reducer, if is_static { null() } else { loss.as_ptr() })
        ));
        loss.backward();
        succeeds(call!(called, trainer_reducer_finish(reducer)));
        succeeds(call!(called, trainer_reducer_check(reducer)));
        if leaves {
            succeeds(call!(called, trainer_world_leave(world)));
            fails(call!(called, trainer_reducer_prepare(reducer, null())), "has left");
            fails(call!(called, trainer_reducer_set_static(reducer)), "has left");
            fails(call!(called, trainer_reducer_compress(world, reducer, true)), "has left");
            succeeds(call!(called, trainer_reducer_check(reducer)));
        }
        succeeds(call!(called, trainer_reducer_free(reducer)));
        params[0].square().sum(Kind::Float).backward();
    }
    call!(called, trainer_world_close(world));
    // The store of another thread outlives the world.
    succeeds(call!(called, trainer_store_set(store, c"key".as_ptr(), b"three".as_ptr(), 5)));
    call!(called, trainer_store_free(store));
    let _ = std::fs::remove_file(file.to_str().unwrap());
}

fn call_guards(called: &mut BTreeSet<String>) {
    let ones = Tensor::ones([3, 2], FLOAT).set_requires_grad(true);
    let none = None::<Tensor>;
    let normalize = |rows: i64| {
        let (mean, var) = (Tensor::zeros([2], FLOAT), Tensor::ones([2], FLOAT));
        let rows = ones.narrow(0, 0, rows);
        rows.f_batch_norm(none.as_ref(), none.as_ref(), Some(&mean), Some(&var), true, 0.1, 1e-5, false)
    };
    let mut single = SingleValue { running_mean: std::ptr::null(), sizes: [0; 6], dims: 0 };
    let before = call!(called, trainer_batch_norm_enter(1));
    let _ = normalize(3).unwrap();
    let _ = normalize(1);
    assert!(call!(called, trainer_batch_norm_exit(before, &raw mut single)));
    assert_eq!(single.sizes[..single.dims], [1, 2]);

    succeeds(call!(called, trainer_warnings_begin()));
    assert_eq!(text(call!(called, trainer_warnings_next())), "");
    call!(called, trainer_warnings_end());

    let mut handle = 0;
    succeeds(call!(called, trainer_losses_start(&raw mut handle)));
    let _ = ones.l1_loss(&Tensor::ones([3, 2], FLOAT), tch::Reduction::Mean);
    assert_eq!(text(call!(called, trainer_losses_stop(handle))), "");
}

/// Keeps a leaf of a graph.
unsafe extern "C" fn keeps(with: *mut c_void, leaf: *mut C_tensor) {
    // SAFETY: `with` points to a list that nothing else uses meanwhile.
    unsafe { (*with.cast::<Vec<Tensor>>()).push(owned(leaf)) }
}

unsafe extern "C" fn keeps_size(with: *mut c_void, _: *const c_void, bytes: usize) {
    // SAFETY: `with` is the list of the test.
    unsafe { (*with.cast::<Vec<usize>>()).push(bytes) }
}

fn call_graph(called: &mut BTreeSet<String>) {
    let weight = Tensor::ones([3], FLOAT).set_requires_grad(true);
    let before = call!(called, trainer_changes(weight.as_ptr()));
    let _ = tch::no_grad(|| weight.shallow_clone().f_add_scalar_(1.0));
    assert_eq!(call!(called, trainer_changes(weight.as_ptr())), before + 1);
    assert_eq!(call!(called, trainer_changes(Tensor::new().as_ptr())), 0);

    let input = Tensor::ones([3], FLOAT);
    let mut handle = 0;
    succeeds(call!(called, trainer_flow_start(&raw mut handle)));
    fails(call!(called, trainer_flow_start(&raw mut handle)), "already");
    let fresh = &weight * Tensor::rand([3], FLOAT);
    let hidden = Tensor::stack(&[&weight * &input, tch::no_grad(|| &input * 2.0)], 0).dropout(0.5, true);
    let loss = hidden.sum(Kind::Float);
    let _ = loss.double_value(&[]);

    for of in [&loss, &weight, &input] {
        let mut leaves: Vec<Tensor> = Vec::new();
        let mut has_gradients = true;
        let with = (&raw mut leaves).cast::<c_void>();
        succeeds(call!(called, trainer_leaves(of.as_ptr(), keeps, with, &raw mut has_gradients)));
        assert_eq!((leaves.len(), has_gradients), (usize::from(of.requires_grad()), false));
    }
    let list = [weight.shallow_clone(), input.shallow_clone(), fresh.shallow_clone()];
    let of_list = handles(&list);
    for (of, expected, known) in [(&loss, [true, true, false], true), (&fresh, [true, false, true], false)] {
        let (mut found, mut is_known) = ([false; 3], true);
        succeeds(call!(
            called,
            trainer_flow_sources(
                of.as_ptr(),
                false,
                of_list.as_ptr(),
                3,
                found.as_mut_ptr(),
                &raw mut is_known,
            )
        ));
        assert_eq!((found, is_known), (expected, known));
    }
    let (mut used, [mut selects, mut has_failed]) = ([false; 3], [true; 2]);
    succeeds(call!(
        called,
        trainer_flow_uses(of_list.as_ptr(), 3, used.as_mut_ptr(), &raw mut selects, &raw mut has_failed,)
    ));
    assert_eq!((used, selects, has_failed), ([true; 3], false, false));
    let mut sizes: Vec<usize> = Vec::new();
    let with = (&raw mut sizes).cast::<c_void>();
    succeeds(call!(called, trainer_flow_memory(keeps_size, with)));
    assert!(sizes.iter().filter(|size| **size == 12).count() >= 3);
    assert_eq!(text(call!(called, trainer_flow_trains())), "dropout");
    succeeds(call!(called, trainer_flow_stop(handle)));
    assert!(call!(called, trainer_flow_trains()).is_null());
}

#[test]
fn every_entry_point_can_be_called() {
    let mut called = BTreeSet::from(["trainer_free".to_owned()]); // in `text_of`
    let calls = &mut called;
    call_checkpointing(calls);
    call_tensors(calls);
    call_losses(calls);
    call_gradients(calls);
    call_optimizers(calls);
    call_modes(calls);
    call_scan(calls);
    call_cuda(calls);
    call_guards(calls);
    call_graph(calls);
    let packages = if cfg!(feature = "distributed") { &["sys", "c10d-sys"][..] } else { &["sys"] };
    #[cfg(feature = "distributed")]
    call_world(calls);
    let declared: BTreeSet<String> = packages.iter().flat_map(|package| declared(package)).collect();
    let missing: Vec<_> = declared.difference(&called).collect();
    assert!(missing.is_empty(), "call these functions in this test: {missing:?}");
    println!("{} entry points were called", declared.len());
}
