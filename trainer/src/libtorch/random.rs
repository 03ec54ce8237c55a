//! The state of libtorch's random number generators, and checks of states that come from a file.

use std::marker::PhantomData;

use tch::{Device, Kind, Tensor};
use trainer_sys::{trainer_draws_start, trainer_draws_stop, trainer_random_state, trainer_set_random_state};

use super::{bytes, from_bytes, outcome};
use crate::error::{Error, Result};

/// Returns the state of the random number generator of the CPU or of a CUDA device.
pub(crate) fn random_state(device: Device) -> Result<Tensor> {
    let mut state = std::ptr::null_mut();
    // SAFETY: the shim writes one handle, or leaves null.
    outcome(unsafe { trainer_random_state(cuda(device), &raw mut state) })?;
    // SAFETY: without a message there is a handle, which nothing else owns.
    Ok(unsafe { Tensor::from_ptr(state) })
}

/// Restores the state of the random number generator of the CPU or of a CUDA device.
///
/// # Errors
///
/// Returns an error if this is not a state that [`random_state`] can return for the device. The
/// state may come from a file, and libtorch's own checks are too weak: with an invalid state, it
/// would read past the end of its memory.
pub(crate) fn set_random_state(device: Device, state: &Tensor) -> Result<()> {
    let check = if matches!(device, Device::Cuda(_)) { check_cuda } else { check_cpu };
    let copy = checked_copy(state, check).map_err(|why| {
        Error::usage(format!(
            "the random state of {device:?} is invalid: {why}; it was changed or damaged: use another checkpoint"
        ))
    })?;
    // SAFETY: the handle is alive. The state is one that libtorch can have returned, and its memory
    // is aligned like any other allocation of libtorch.
    outcome(unsafe { trainer_set_random_state(cuda(device), copy.as_ptr()) })
}

/// The state of libtorch's random number generators, of the CPU and of one device.
///
/// A hook that draws random numbers from libtorch changes those that dropout draws next. If it
/// keeps the state and restores it afterwards, training stays the same.
///
/// ```
/// use trainer::RandomState;
/// use trainer::prelude::*;
///
/// let before = RandomState::of(Device::Cpu)?;
/// let one = Tensor::rand([3], (Kind::Float, Device::Cpu));
/// before.restore()?;
/// assert_eq!(Tensor::rand([3], (Kind::Float, Device::Cpu)), one);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct RandomState(Vec<(Device, Tensor)>);

impl RandomState {
    /// Copies the state of the generator of the CPU and, if `device` is a CUDA device, of that of
    /// the device.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn of(device: Device) -> Result<Self> {
        let others = Some(device).filter(|device| matches!(device, Device::Cuda(_)));
        let states = std::iter::once(Device::Cpu).chain(others);
        states.map(|device| Ok((device, random_state(device)?))).collect::<Result<_>>().map(RandomState)
    }

    /// Sets the generators to this state.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn restore(&self) -> Result<()> {
        self.0.iter().try_for_each(|(device, state)| set_random_state(*device, state))
    }
}

/// Detects whether this thread calls an operator that draws random numbers from libtorch, on any
/// device. Other threads may draw at the same time, so comparing the states of a generator would
/// not suffice. A thread can have only one watch at a time.
#[derive(Debug)]
pub(crate) struct DrawWatch {
    handle: u64,
    /// Makes the watch neither `Send` nor `Sync`, because it belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl DrawWatch {
    pub(crate) fn start() -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the shim writes one number, or returns a message.
        outcome(unsafe { trainer_draws_start(&raw mut handle) })?;
        Ok(DrawWatch { handle, not_send: PhantomData })
    }

    /// Ends the watch, and returns whether the thread has drawn random numbers.
    pub(crate) fn stop(self) -> Result<bool> {
        let handle = self.handle;
        std::mem::forget(self);
        stop(handle)
    }
}

impl Drop for DrawWatch {
    fn drop(&mut self) {
        let _ = stop(self.handle);
    }
}

fn stop(handle: u64) -> Result<bool> {
    let mut drawn = false;
    // SAFETY: the handle belongs to this thread, which a `DrawWatch` cannot leave, and is removed
    // only once. The shim writes one value, or returns a message.
    outcome(unsafe { trainer_draws_stop(handle, &raw mut drawn) })?;
    Ok(drawn)
}

/// Returns a copy of the state, or the reason why it is invalid.
fn checked_copy(state: &Tensor, check: fn(&[u8]) -> Result<(), String>) -> Result<Tensor, String> {
    if !state.defined() || state.kind() != Kind::Uint8 {
        return Err("it does not consist of bytes".into());
    }
    let state = bytes(state, "it").map_err(|error| error.to_string())?;
    check(&state)?;
    from_bytes(&state, &[state.len() as i64], Kind::Uint8).map_err(|error| error.to_string())
}

/// Returns the index of a CUDA device. Returns -1, which stands for the CPU, for any other device.
pub(super) fn cuda(device: Device) -> i64 {
    match device {
        Device::Cuda(nth) => i64::try_from(nth).unwrap_or(i64::MAX),
        _ => -1,
    }
}

/// The number of words of the Mersenne Twister on the CPU.
const WORDS: usize = 624;
/// The offset of each field in libtorch's `CPUGeneratorImplState`, and the size of the struct. A
/// double and three words of padding are left out: they may have any value, and nothing reads them.
mod offset {
    use super::WORDS;

    pub(super) const LEFT: usize = 8;
    pub(super) const SEEDED: usize = 12;
    pub(super) const NEXT: usize = 16;
    pub(super) const WORDS_BEGIN: usize = 24;
    pub(super) const WORDS_END: usize = WORDS_BEGIN + 8 * WORDS;
    pub(super) const HAS_NORMAL: usize = WORDS_END + 24;
    pub(super) const HAS_FLOAT_NORMAL: usize = HAS_NORMAL + 12;
    pub(super) const END: usize = HAS_FLOAT_NORMAL + 4;
}

/// Returns an error with the reason if this is not a valid state of the CPU generator.
fn check_cpu(state: &[u8]) -> Result<(), String> {
    if state.len() != offset::END {
        return Err(format!("it has {} bytes, expected {}", state.len(), offset::END));
    }
    let int = |at: usize| i32::from_ne_bytes(std::array::from_fn(|nth| state[at + nth]));
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|nth| state[at + nth]));
    if int(offset::SEEDED) != 1 {
        return Err("its generator is not seeded".into());
    }
    // `left - 1` numbers are drawn, from word `next` on, before the words are generated anew. This
    // happens after the last word, or immediately if the generator was just seeded.
    let left = int(offset::LEFT);
    let next = word(offset::NEXT);
    let is_drawn = (1..=WORDS as u64).contains(&next) && u64::try_from(left) == Ok(WORDS as u64 + 1 - next);
    if !is_drawn && (left, next) != (1, 0) {
        return Err(format!("its position is word {next} with {left} left, out of {WORDS}"));
    }
    let mut words = (offset::WORDS_BEGIN..offset::WORDS_END).step_by(8).map(word);
    if words.any(|word| word > u64::from(u32::MAX)) {
        return Err("its words do not have 32 bits".into());
    }
    if !matches!(int(offset::HAS_NORMAL), 0 | 1) || state[offset::HAS_FLOAT_NORMAL] > 1 {
        return Err("its flags are neither 0 nor 1".into());
    }
    Ok(())
}

/// Returns an error with the reason if this is not a valid state of a CUDA generator: a seed and an
/// offset, which is a multiple of 4.
fn check_cuda(state: &[u8]) -> Result<(), String> {
    let (&[_, offset], []) = state.as_chunks::<8>() else {
        return Err(format!("it has {} bytes, expected 16", state.len()));
    };
    let offset = i64::from_ne_bytes(offset);
    if offset < 0 || offset % 4 != 0 {
        return Err(format!("its offset is {offset}, expected a multiple of 4"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(state: &Tensor) -> Vec<u8> {
        bytes(state, "it").unwrap().to_vec()
    }

    fn with(state: &[u8], at: usize, value: &[u8]) -> Vec<u8> {
        let mut changed = state.to_vec();
        changed[at..at + value.len()].copy_from_slice(value);
        changed
    }

    #[test]
    fn every_state_of_the_cpu_generator_is_accepted() {
        let mut own_states = vec![own(&random_state(Device::Cpu).unwrap())];
        own_states.extend((0..700).map(|nth| {
            // Other tests draw from the same generator at the same time: any state may result.
            let _ = Tensor::rand([1 + nth % 5], (Kind::Double, Device::Cpu));
            let _ = Tensor::randn([3], (Kind::Float, Device::Cpu));
            own(&random_state(Device::Cpu).unwrap())
        }));
        for state in own_states {
            assert_eq!(check_cpu(&state), Ok(()));
        }
    }

    #[test]
    fn a_forged_state_of_the_cpu_generator_is_refused() {
        let state = own(&random_state(Device::Cpu).unwrap());
        let int = |at, value: i32| with(&state, at, &value.to_ne_bytes());
        let position =
            |left: i32, next: u64| with(&int(offset::LEFT, left), offset::NEXT, &next.to_ne_bytes());
        assert_eq!(check_cpu(&position(1, 0)), Ok(()), "just seeded");
        for next in 1..=624 {
            assert_eq!(check_cpu(&position(625 - i32::try_from(next).unwrap(), next)), Ok(()));
        }
        let beyond = [
            (624, 624),
            (624, 2),
            (2, 624),
            (625, 0),
            (624, 0),
            (0, 625),
            (0, 0),
            (-1, 624),
            (i32::MIN, 1),
            (i32::MAX, 1),
            (1, 625),
            (1, u64::MAX),
            (624, 1 << 32 | 1),
        ];
        for (left, next) in beyond {
            let error = check_cpu(&position(left, next)).unwrap_err();
            assert!(error.starts_with("its position is word "), "{left} {next}: {error}");
        }
        let forged = [
            int(offset::SEEDED, 0),
            int(offset::SEEDED, 257),
            int(offset::HAS_NORMAL, -1),
            with(&state, offset::HAS_FLOAT_NORMAL, &[2]),
            with(&state, offset::WORDS_BEGIN + 4, &[1]),
            with(&state, offset::WORDS_END - 1, &[128]),
            state[..state.len() - 8].to_vec(),
            [&state[..], &[0]].concat(),
            Vec::new(),
        ];
        for (nth, forged) in forged.iter().enumerate() {
            assert!(check_cpu(forged).is_err(), "{nth}");
        }
    }

    #[test]
    fn a_forged_state_of_a_cuda_generator_is_refused() {
        let state = |seed: u64, offset: i64| [seed.to_ne_bytes(), offset.to_ne_bytes()].concat();
        assert_eq!(check_cuda(&state(u64::MAX, 0)), Ok(()));
        assert_eq!(check_cuda(&state(7, 1 << 40)), Ok(()));
        for forged in [state(7, 2), state(7, -4), state(7, 4)[..8].to_vec(), [state(7, 4), vec![0]].concat()]
        {
            assert!(check_cuda(&forged).is_err(), "{forged:?}");
        }
    }

    #[test]
    fn a_state_that_does_not_consist_of_bytes_is_refused() {
        let state = random_state(Device::Cpu).unwrap();
        for other in [state.to_kind(Kind::Int8), Tensor::new(), state.narrow(0, 0, 16)] {
            assert!(set_random_state(Device::Cpu, &other).is_err(), "{other:?}");
        }
    }
}
