//! GPT-2, BERT, ViT and ResNet as plain tch modules. Their variables have the names of the weights
//! that are published on the Hugging Face hub, so that `load_weights` reads these files as they
//! are, and their blocks are named modules, at which hooks run. The page `models` of the guide of
//! `trainer` explains how to fine-tune them.
//!
//! - [`Gpt2`] predicts the next token of a text, and [generates](Generate) texts.
//! - [`BertMaskedLm`] predicts masked tokens, [`BertClassifier`] classifies texts.
//! - [`Vit`] and [`ResNet`] classify images.
//! - [`loss`] has their losses, which skip ignored labels.
//! - [`Files`] are those of a published model. With the feature `hub`, `hub::fetch` downloads them.

/// The code of the page about models in the guide.
#[cfg(doctest)]
#[doc = include_str!(concat!(env!("OUT_DIR"), "/guide/models.md"))]
pub struct Guide;

#[cfg(test)]
mod tests;

pub mod bert;
mod config;
mod files;
pub mod generate;
pub mod gpt2;
#[cfg(feature = "hub")]
pub mod hub;
mod layers;
pub mod loss;
pub mod resnet;
pub mod vit;

pub use bert::{BertClassifier, BertConfig, BertMaskedLm};
pub use files::Files;
pub use generate::{Generate, Sampling};
pub use gpt2::{Gpt2, Gpt2Config};
pub use layers::Activation;
pub use resnet::ResNet;
pub use vit::{Vit, VitConfig};
