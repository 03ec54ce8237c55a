//! Whole programs: what is promised of the trainer, tried on real runs.

use plugin as _;

mod allocation;
mod around;
mod blame;
mod describe;
mod discovery;
mod errors;
mod flow;
mod hooks;
mod instances;
mod lifecycles;
mod model;
mod order;
mod parts;
mod reference;
mod trace;
