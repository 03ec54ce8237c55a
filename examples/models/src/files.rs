//! The files of a published model.

use std::path::{Path, PathBuf};

use trainer::prelude::*;

/// The file names under which weights are published, in search order.
pub(crate) const WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// The file name of the configuration.
pub(crate) const CONFIG: &str = "config.json";

/// The files of a published model, in a folder or from the hub (feature `hub`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The configuration, to be read with [`Gpt2Config::from_json`](crate::Gpt2Config::from_json),
    /// for example.
    pub config: PathBuf,
    /// The weights, for [`Trainer::load_weights`].
    pub weights: PathBuf,
}

impl Files {
    /// Returns the files in a folder: `config.json`, and `model.safetensors` or else
    /// `pytorch_model.bin`. No network is needed.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration or the weights are missing.
    pub fn in_folder(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let missing = |what: &str| {
            Error::msg(format!("{} has no {what}: download it from the model's page", folder.display()))
        };
        let config = folder.join(CONFIG);
        if !config.is_file() {
            return Err(missing("`config.json`"));
        }
        let weights = WEIGHTS.map(|name| folder.join(name)).into_iter().find(|path| path.is_file());
        let weights = weights.ok_or_else(|| missing("`model.safetensors` and no `pytorch_model.bin`"))?;
        Ok(Files { config, weights })
    }
}
