//! Access to a run for the hook that writes the certificate.

use std::collections::BTreeMap;

use tch::Device;
use trainer_formats::certificate::{Header, Place, VERSION};

use crate::checkpoint::progress::Stage;
use crate::error::Result;
use crate::libtorch;
use crate::run::Run;
use crate::run::context::Cx;

impl<P> Cx<P> {
    /// The number of training batches so far, and the current position in the loop. The position is
    /// `None` during the sanity check and validation, and after a step that failed midway.
    pub(crate) fn link_place(&self) -> (u64, Option<Place>) {
        let place = match self.run.fit.position.stage {
            Stage::Training => Some(Place::Batch),
            Stage::BetweenEpochs => Some(Place::Epoch),
            _ => None,
        };
        (self.run.progress.train_batches, place.filter(|_| !self.run.fit.failed_mid_step))
    }

    /// A hash of the tensors of the current batch.
    pub(crate) fn batch_digest(&self) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        let mut result = Ok(());
        if let Some(data) = &self.run.step.data {
            data.visit_batch(&mut |tensor| {
                let mut read = || -> Result<()> {
                    hasher.update(format!("{:?} {:?}", tensor.kind(), tensor.size()).as_bytes());
                    let on_cpu = tensor.detach().f_to_device(Device::Cpu)?.f_contiguous()?;
                    hasher.update(libtorch::bytes(&on_cpu)?);
                    Ok(())
                };
                if result.is_ok() {
                    result = read();
                }
            });
        }
        result.map(|()| hasher.finalize().to_hex().to_string())
    }
}

impl Run {
    /// The header of a certificate of this run. `state` is the hash of the run's state.
    pub(crate) fn certificate_header(&self, state: String) -> Header {
        let facts = self.checkpoints.facts.clone().unwrap_or_default();
        let mut settings = facts.settings;
        let mut crates = BTreeMap::new();
        for (hook, of) in &facts.hooks {
            let named = of.settings.iter().map(|(name, value)| (format!("{hook}.{name}"), value.clone()));
            settings.extend(named);
            let [name, version] = of.package.clone();
            if !name.is_empty() {
                crates.insert(name, version);
            }
        }
        Header {
            certificate: VERSION,
            batches: self.progress.train_batches,
            circumstances: self.circumstances(),
            settings,
            hooks: facts.order,
            crates,
            data: self.fit.data.clone(),
            state,
        }
    }
}
