//! Published weights and configurations.

use trainer::checkpoint::{LoadWeights, Loaded};

use super::*;
use crate::Files;

/// Writes the weights of a model under different names, and loads them into a second model. All
/// loaded variables must then be equal.
fn load<N: ModuleT + Send + 'static>(
    build: fn(&nn::Path<'_>) -> N,
    rename: impl Fn(&str) -> Option<String>,
    unused: &[&str],
    how: &LoadWeights<'_>,
) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let (source, _) = with_large_weights(build);
    let source = source.variables();
    let mut tensors: Vec<_> =
        source.iter().filter_map(|(name, tensor)| Some((rename(name)?, tensor.shallow_clone()))).collect();
    tensors.extend(unused.iter().map(|name| ((*name).to_owned(), Tensor::ones([1, 1, 4, 4], FLOAT))));
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Tensor::write_safetensors(&tensors, &path).unwrap();

    let vs = nn::VarStore::new(Device::Cpu);
    let net = build(&vs.root());
    let task = Supervised::new(vs, net, |logits: &Tensor, _: &Tensor| logits.sum(Kind::Float));
    let mut trainer = Trainer::builder(task).discover(Discover::None).build().unwrap();
    let loaded = trainer.load_weights(&path, how).unwrap();
    assert!(loaded.unexpected.is_empty(), "{loaded}");
    let vars = trainer.task().vars().variables();
    for name in &loaded.loaded {
        assert_eq!(vars[name], source[name], "{name}");
    }
    loaded
}

#[test]
fn old_and_new_published_files_are_loaded() {
    let gpt2: fn(&nn::Path<'_>) -> Gpt2 = |root| Gpt2::new(root, &tiny_gpt2());
    // `openai-community/gpt2` has no prefix, and contains the causal masks. Other files contain the
    // output layer.
    let old = |name: &str| Some(name.strip_prefix("transformer.").unwrap().to_owned());
    let masks = ["h.0.attn.bias", "h.1.attn.bias", "h.0.attn.masked_bias"];
    assert_eq!(load(gpt2, old, &masks, &Gpt2::published()).missing, [""; 0]);
    let masks = ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias", "lm_head.weight"];
    assert_eq!(load(gpt2, |name| Some(name.to_owned()), &masks, &Gpt2::published()).missing, [""; 0]);

    // `google-bert/bert-base-uncased` has names of the first implementation.
    let old = |name: &str| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        Some(name.replace("LayerNorm.bias", "LayerNorm.beta"))
    };
    let masked: fn(&nn::Path<'_>) -> BertMaskedLm = |root| BertMaskedLm::new(root, &tiny_bert());
    let unused = [
        "bert.embeddings.position_ids",
        "bert.pooler.dense.weight",
        "cls.seq_relationship.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    ];
    assert_eq!(load(masked, old, &unused, &BertMaskedLm::published()).missing, [""; 0]);
    let classifier: fn(&nn::Path<'_>) -> BertClassifier = |root| BertClassifier::new(root, &tiny_bert());
    let language_model = |name: &str| if name.starts_with("classifier.") { None } else { old(name) };
    let unused = ["bert.embeddings.position_ids", "cls.seq_relationship.bias", "cls.predictions.bias"];
    let loaded = load(classifier, language_model, &unused, &BertClassifier::published().partial(true));
    assert_eq!(loaded.missing, ["classifier.bias", "classifier.weight"]);
    let encoder = |name: &str| language_model(name).map(|name| name.replacen("bert.", "", 1));
    let loaded = load(classifier, encoder, &[], &BertClassifier::published().partial(true));
    assert_eq!(loaded.missing, ["classifier.bias", "classifier.weight"]);

    let vit: fn(&nn::Path<'_>) -> Vit = |root| Vit::new(root, &tiny_vit());
    let same = |name: &str| Some(name.to_owned());
    let unused = ["vit.pooler.dense.weight", "vit.embeddings.mask_token"];
    assert_eq!(load(vit, same, &unused, &Vit::published()).missing, [""; 0]);
    let encoder = |name: &str| name.strip_prefix("vit.").map(str::to_owned);
    let loaded = load(vit, encoder, &["pooler.dense.weight"], &Vit::published().partial(true));
    assert_eq!(loaded.missing, ["classifier.bias", "classifier.weight"]);

    let resnet: fn(&nn::Path<'_>) -> ResNet = |root| ResNet::resnet18(root, 3);
    let counters = ["bn1.num_batches_tracked", "layer1.0.bn1.num_batches_tracked"];
    assert_eq!(load(resnet, same, &counters, &LoadWeights::new()).missing, [""; 0]);
}

#[test]
fn configurations_match_those_of_the_hub() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let write = |text: &str| {
        std::fs::write(&path, text).unwrap();
        path.as_path()
    };
    // A shortened copy of the file of `openai-community/gpt2`.
    let json = r#"{"activation_function": "gelu_new", "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
        "n_head": 12, "n_layer": 12, "n_positions": 1024, "task_specific_params": {"a": 1}, "vocab_size": 50257}"#;
    assert_eq!(Gpt2Config::from_json(write(json)).unwrap(), Gpt2Config::small());
    let json = r#"{"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute",
        "id2label": {"0": "a", "1": "b", "2": "c"}}"#;
    assert_eq!(BertConfig::from_json(write(json)).unwrap(), BertConfig::base().classes(3));
    let json =
        r#"{"model_type": "vit", "hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}"#;
    assert_eq!(VitConfig::from_json(write(json)).unwrap(), VitConfig::tiny_16_224().classes(2));
}

#[test]
fn unsupported_and_invalid_configurations_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    #[track_caller]
    fn check<C: std::fmt::Debug>(path: &Path, json: &str, read: fn(&Path) -> Result<C>, expected: &str) {
        std::fs::write(path, json).unwrap();
        let message = read(path).unwrap_err().to_string();
        assert_eq!(message, format!("{}: {expected}", path.display()));
    }
    let gpt2 = |json: &str, expected: &str| check(&path, json, |path| Gpt2Config::from_json(path), expected);
    gpt2(r#"{"model_type": "llama"}"#, "describes the model `llama`: expected `gpt2`");
    gpt2(r#"{"n_embd": 768}"#, "has no `model_type`: expected \"gpt2\"");
    gpt2("{", "invalid JSON: EOF while parsing an object at line 1 column 1");
    gpt2(
        r#"{"model_type": "gpt2", "tie_word_embeddings": false}"#,
        "`tie_word_embeddings` is false, but only true is supported",
    );
    gpt2(
        r#"{"model_type": "gpt2", "activation_function": "silu"}"#,
        "unknown variant `silu`, expected one of `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `relu`",
    );
    gpt2(
        r#"{"model_type": "gpt2", "n_head": 5}"#,
        "the width 768 is not a multiple of the number of heads, 5",
    );
    gpt2(r#"{"model_type": "gpt2", "n_layer": 0}"#, "`n_layer` is 0: expected at least 1");
    gpt2(
        r#"{"model_type": "gpt2", "attn_pdrop": 1.0}"#,
        "`attn_pdrop` is 1: expected at least 0 and less than 1",
    );
    let bert = |json: &str, expected: &str| check(&path, json, |path| BertConfig::from_json(path), expected);
    bert(
        r#"{"model_type": "bert", "position_embedding_type": "relative_key"}"#,
        "`position_embedding_type` is \"relative_key\", but only \"absolute\" is supported",
    );
    bert(
        r#"{"model_type": "bert", "pad_token_id": 99999}"#,
        "`pad_token_id` is 99999: expected at least 0 and less than `vocab_size`, 30522",
    );
    let vit = |json: &str, expected: &str| check(&path, json, |path| VitConfig::from_json(path), expected);
    vit(
        r#"{"model_type": "vit", "patch_size": 15}"#,
        "`image_size`, 224, is not a multiple of `patch_size`, 15",
    );
    let missing = Gpt2Config::from_json(folder.path().join("none.json")).unwrap_err().to_string();
    assert!(missing.contains("none.json") && missing.contains("No such file"), "{missing}");
}

#[test]
fn files_in_a_folder_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let message = || Files::in_folder(path).unwrap_err().to_string();
    assert_eq!(
        message(),
        format!("{} has no `config.json`: download it from the model's page", path.display())
    );
    std::fs::write(path.join("config.json"), "{}").unwrap();
    assert!(message().contains("has no `model.safetensors` and no `pytorch_model.bin`"), "{}", message());
    std::fs::write(path.join("pytorch_model.bin"), "").unwrap();
    assert_eq!(Files::in_folder(path).unwrap().weights, path.join("pytorch_model.bin"));
    std::fs::write(path.join("model.safetensors"), "").unwrap();
    let files = Files { config: path.join("config.json"), weights: path.join("model.safetensors") };
    assert_eq!(Files::in_folder(path).unwrap(), files);
}
