//! The replacement for `dist.rs` without the feature `distributed`. No value of these types exists,
//! so the compiler removes the code that would use such a value.

use tch::Tensor;

use super::TensorList;
use crate::error::{Error, Result};

/// The rendezvous: where and how the ranks connect.
#[derive(Clone, Debug)]
#[allow(dead_code)]
pub(crate) struct Meeting<'a> {
    pub(crate) tcp: (&'a str, u16),
    pub(crate) file: Option<&'a str>,
    pub(crate) prefix: &'a str,
    pub(crate) interface: Option<&'a str>,
    pub(crate) own_host: Option<&'a str>,
    pub(crate) timeout_ms: i64,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) is_server: bool,
}

/// The process groups that connect the ranks: see `dist.rs`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProcessGroup {
    Data,
    Layers,
}

/// The arguments of a batch normalization that uses the statistics of all ranks.
#[derive(Debug)]
#[allow(dead_code)]
pub(crate) struct BatchNorm<'a> {
    pub(crate) input: &'a Tensor,
    pub(crate) weight: Option<&'a Tensor>,
    pub(crate) bias: Option<&'a Tensor>,
    pub(crate) mean: &'a Tensor,
    pub(crate) variance: &'a Tensor,
    pub(crate) eps: f64,
    pub(crate) count: f64,
    pub(crate) counts: bool,
}

/// The connections of this process to the other ranks.
#[derive(Clone, Debug)]
pub(crate) enum Group {}

impl Group {
    /// Whether this crate was built with the feature `distributed`.
    pub(crate) const IS_AVAILABLE: bool = false;

    pub(crate) fn raise_open_files(_: u64) -> u64 {
        u64::MAX
    }

    pub(crate) fn connect(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn set_shared(&self, _: &str, _: &str) -> Result<()> {
        match *self {}
    }

    pub(crate) fn shared(&self, _: &str) -> Result<Option<String>> {
        match *self {}
    }

    pub(crate) fn count(&self, _: &str) -> Result<u64> {
        match *self {}
    }

    pub(crate) fn open(_: &Meeting<'_>) -> Result<Self> {
        Err(Error::usage(
            "cannot connect to the other ranks: the crate `trainer` was built without its feature `distributed`; enable \
             the feature",
        ))
    }

    pub(crate) fn rank(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn size(&self) -> u32 {
        match *self {}
    }

    pub(crate) fn is_server(&self) -> bool {
        match *self {}
    }

    pub(crate) fn has_failed(&self) -> bool {
        match *self {}
    }

    pub(crate) fn note_failure(&self) {
        match *self {}
    }

    pub(crate) fn store(&self) -> Store {
        match *self {}
    }

    pub(crate) fn interface_address(_: &str) -> Option<String> {
        None
    }

    pub(crate) fn leave(&self) {
        match *self {}
    }

    pub(crate) fn all_reduce(&self, _: ProcessGroup, _: &Tensor, _: i32) -> Result<()> {
        match *self {}
    }

    pub(crate) fn broadcast(&self, _: &TensorList, _: u32) -> Result<()> {
        match *self {}
    }

    pub(crate) fn all_gather(&self, _: &Tensor, _: &Tensor) -> Result<()> {
        match *self {}
    }

    pub(crate) fn reduce_scatter(&self, _: &Tensor, _: &Tensor) -> Result<()> {
        match *self {}
    }

    pub(crate) fn batch_norm(&self, _: &BatchNorm<'_>) -> Result<Tensor> {
        match *self {}
    }

    pub(crate) fn set(&self, _: &str, _: &str) -> Result<()> {
        match *self {}
    }

    pub(crate) fn get(&self, _: &str) -> Result<Option<String>> {
        match *self {}
    }
}

/// A handle to the store, for a thread other than the one that runs the collectives.
#[derive(Debug)]
pub(crate) enum Store {}

impl Store {
    pub(crate) fn set(&self, _: &str, _: &str) -> Result<()> {
        match *self {}
    }

    pub(crate) fn get(&self, _: &str) -> Result<Option<String>> {
        match *self {}
    }
}

/// libtorch's `c10d::Reducer`.
#[derive(Debug)]
pub(crate) enum RawReducer {}

impl RawReducer {
    pub(crate) fn new(group: &Group, _: &TensorList, _: &[String], _: i64, _: bool) -> Result<Self> {
        match *group {}
    }

    pub(crate) fn compress(&self, _: bool) -> Result<()> {
        match *self {}
    }

    pub(crate) fn set_static_graph(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn prepare(&self, _: Option<&Tensor>) -> Result<()> {
        match *self {}
    }

    pub(crate) fn finish(&self) -> Result<()> {
        match *self {}
    }

    pub(crate) fn check(&self) -> Result<()> {
        match *self {}
    }
}

/// An exchange of gradients that are divided among the ranks.
#[derive(Debug)]
pub(crate) enum RawExchange {}

impl RawExchange {
    pub(crate) fn new(group: &Group, _: &TensorList, _: &[i32], _: i64) -> Result<Self> {
        match *group {}
    }

    pub(crate) fn begin(&self, _: Option<&Tensor>, _: bool, _: bool, _: bool) -> Result<()> {
        match *self {}
    }

    pub(crate) fn ready(&self, _: usize) -> Result<()> {
        match *self {}
    }

    pub(crate) fn finish(&self) -> Result<usize> {
        match *self {}
    }

    pub(crate) fn abandon(&self) {
        match *self {}
    }
}
