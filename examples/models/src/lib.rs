//! GPT-2, BERT, ViT and ResNet as plain tch modules. Their variables are named like the weights
//! published on the Hugging Face hub, so `load_weights` reads the published files unchanged. Their
//! blocks are named modules, so hooks can run at each of them. The page `models` of the guide of
//! `trainer` explains how to fine-tune the models.
//!
//! - [`Gpt2`] predicts the next token of a text, and [generates](Generate) texts.
//! - [`BertMaskedLm`] predicts masked tokens, [`BertClassifier`] classifies texts.
//! - [`Vit`] and [`ResNet`] classify images.
//! - [`loss`] has their losses, which skip ignored labels.
//! - [`Files`] are the files of a published model. With the feature `hub`, `hub::fetch` downloads
//!   them.

/// The code of the guide's page about models.
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
