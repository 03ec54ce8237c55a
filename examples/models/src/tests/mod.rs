//! Tests of what all models share: names, initial weights, training, and which tokens see each
//! other.

use std::collections::BTreeSet;
use std::path::Path;

use trainer::modules;
use trainer::prelude::*;
use trainer::tch::nn::ModuleT;

use crate::bert::Text;
use crate::gpt2::Cache;
use crate::{
    BertClassifier, BertConfig, BertMaskedLm, Generate, Gpt2, Gpt2Config, ResNet, Sampling, Vit, VitConfig,
    loss,
};

mod published;

const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

fn tiny_gpt2() -> Gpt2Config {
    Gpt2Config { vocab_size: 23, n_positions: 16, n_embd: 8, n_layer: 2, n_head: 2, ..Gpt2Config::small() }
}

fn tiny_bert() -> BertConfig {
    BertConfig {
        vocab_size: 23,
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 12,
        max_position_embeddings: 16,
        ..BertConfig::base()
    }
}

fn tiny_vit() -> VitConfig {
    VitConfig {
        image_size: 8,
        patch_size: 4,
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 12,
        ..VitConfig::default()
    }
}

/// Builds a network with large weights, because the initial weights make all logits close to 0.
fn with_large_weights<N>(build: impl FnOnce(&nn::Path<'_>) -> N) -> (nn::VarStore, N) {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let net = build(&vs.root());
    let _no_grad = tch::no_grad_guard();
    for mut tensor in vs.trainable_variables() {
        let _ = tensor.normal_(0.0, 0.4);
    }
    (vs, net)
}

fn tokens(shape: [i64; 2]) -> Tensor {
    Tensor::randint_low(1, 23, shape, (Kind::Int64, Device::Cpu))
}

#[track_caller]
fn assert_close(one: &Tensor, other: &Tensor) {
    assert_eq!(one.size(), other.size());
    let difference = (one - other).abs().max().double_value(&[]);
    assert!(difference < 1e-5, "{difference}");
}

/// Returns the names and shapes of all variables, in the format of the files in `names/`.
fn names<N>(build: impl FnOnce(&nn::Path<'_>) -> N) -> String {
    let vs = nn::VarStore::new(Device::Cpu);
    let _net = build(&vs.root());
    let lines: BTreeSet<String> = (vs.variables().iter())
        .map(|(name, tensor)| {
            let shape: String = tensor.size().iter().map(|size| format!(" {size}")).collect();
            format!("{name}{shape}\n")
        })
        .collect();
    lines.into_iter().collect()
}

/// The lists in `names/` contain the tensors that `transformers` and torchvision save.
/// `make interop` compares the lists with these libraries.
#[test]
fn variables_have_the_names_and_shapes_of_the_published_weights() {
    let sorted = |list: &str| list.lines().map(|line| format!("{line}\n")).collect::<BTreeSet<_>>();
    #[track_caller]
    fn same(name: &str, ours: &BTreeSet<String>, published: &BTreeSet<String>) {
        let missing: Vec<_> = published.difference(ours).collect();
        let unexpected: Vec<_> = ours.difference(published).collect();
        assert!(missing.is_empty() && unexpected.is_empty(), "{name}: {missing:?}, {unexpected:?}");
    }
    let gpt2 = names(|root| Gpt2::new(root, &Gpt2Config { initializer_range: 0.0, ..Gpt2Config::small() }));
    same("GPT-2", &sorted(&gpt2), &sorted(include_str!("../../names/gpt2.txt")));
    let zeros = BertConfig { initializer_range: 0.0, ..BertConfig::base() };
    let bert = names(|root| BertMaskedLm::new(root, &zeros));
    same("masked", &sorted(&bert), &sorted(include_str!("../../names/bert_masked_lm.txt")));
    let bert = names(|root| BertClassifier::new(root, &zeros));
    same("classifier", &sorted(&bert), &sorted(include_str!("../../names/bert_classifier.txt")));
    let vit = names(|root| Vit::new(root, &VitConfig { initializer_range: 0.0, ..VitConfig::base_16_224() }));
    same("ViT", &sorted(&vit), &sorted(include_str!("../../names/vit.txt")));
    let resnet = names(|root| ResNet::resnet18(root, 1000));
    same("ResNet-18", &sorted(&resnet), &sorted(include_str!("../../names/resnet18.txt")));
    let resnet = names(|root| ResNet::resnet34(root, 1000));
    same("ResNet-34", &sorted(&resnet), &sorted(include_str!("../../names/resnet34.txt")));
    let resnet = names(|root| ResNet::resnet50(root, 1000));
    same("ResNet-50", &sorted(&resnet), &sorted(include_str!("../../names/resnet50.txt")));
}

#[test]
fn blocks_and_their_layers_are_named_modules() {
    fn of(vs: &nn::VarStore, net: &impl ModuleT, input: &Tensor) -> Vec<String> {
        let table = modules::summary(vs, net, input).unwrap();
        table.rows().iter().map(|row| row.name.clone()).collect()
    }
    #[track_caller]
    fn contains(names: &[String], expected: &[&str]) {
        for name in expected {
            assert!(names.iter().any(|own| own == name), "no `{name}` in {names:?}");
        }
    }
    let vs = nn::VarStore::new(Device::Cpu);
    let gpt2 = of(&vs, &Gpt2::new(&vs.root(), &tiny_gpt2()), &tokens([1, 4]));
    contains(
        &gpt2,
        &["transformer.wte", "transformer.wpe", "transformer.drop", "transformer.h.1", "lm_head"],
    );
    contains(&gpt2, &["transformer.h.1.ln_1", "transformer.h.1.attn", "transformer.h.1.attn.c_attn"]);
    contains(&gpt2, &["transformer.h.1.attn.c_proj", "transformer.h.1.ln_2", "transformer.h.1.mlp"]);
    contains(&gpt2, &["transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj", "transformer.ln_f"]);

    let vs = nn::VarStore::new(Device::Cpu);
    let bert = of(&vs, &BertMaskedLm::new(&vs.root(), &tiny_bert()), &tokens([1, 4]));
    let layer = "bert.encoder.layer.1";
    contains(
        &bert,
        &["bert.embeddings", "bert.embeddings.word_embeddings", "bert.embeddings.LayerNorm", layer],
    );
    for part in ["attention", "attention.self.query", "attention.self.key", "attention.self.value"] {
        contains(&bert, &[&format!("{layer}.{part}")]);
    }
    for part in
        ["attention.output", "attention.output.dense", "intermediate.dense", "output", "output.LayerNorm"]
    {
        contains(&bert, &[&format!("{layer}.{part}")]);
    }
    contains(&bert, &["cls.predictions.transform", "cls.predictions.decoder"]);

    let vs = nn::VarStore::new(Device::Cpu);
    let bert = of(&vs, &BertClassifier::new(&vs.root(), &tiny_bert()), &tokens([1, 4]));
    contains(&bert, &["bert.encoder.layer.1", "bert.pooler", "bert.pooler.dense", "classifier"]);

    let vs = nn::VarStore::new(Device::Cpu);
    let vit = of(&vs, &Vit::new(&vs.root(), &tiny_vit()), &Tensor::zeros([1, 3, 8, 8], FLOAT));
    contains(&vit, &["vit.embeddings", "vit.embeddings.patch_embeddings.projection", "vit.encoder.layer.1"]);
    contains(&vit, &["vit.encoder.layer.1.attention", "vit.encoder.layer.1.attention.attention.query"]);
    contains(&vit, &["vit.encoder.layer.1.output.dense", "vit.layernorm", "classifier"]);

    let vs = nn::VarStore::new(Device::Cpu);
    let resnet = of(&vs, &ResNet::resnet50(&vs.root(), 3), &Tensor::zeros([1, 3, 32, 32], FLOAT));
    contains(&resnet, &["conv1", "bn1", "relu", "maxpool", "layer1", "layer1.0", "layer1.0.conv3"]);
    contains(&resnet, &["layer1.0.bn3", "layer1.0.relu", "layer2.0.downsample", "layer2.0.downsample.1"]);
    contains(&resnet, &["layer4.2", "avgpool", "fc"]);
}

#[test]
fn initial_weights_match_the_papers() {
    tch::manual_seed(1);
    let stdev = |vs: &nn::VarStore, name: &str| vs.variables()[name].std(false).double_value(&[]);
    let near =
        |value: f64, expected: f64| assert!((value / expected - 1.0).abs() < 0.1, "{value}, {expected}");
    let vs = nn::VarStore::new(Device::Cpu);
    let _gpt2 = Gpt2::new(&vs.root(), &Gpt2Config { n_embd: 64, n_layer: 8, ..tiny_gpt2() });
    near(stdev(&vs, "transformer.wte.weight"), 0.02);
    near(stdev(&vs, "transformer.h.3.mlp.c_fc.weight"), 0.02);
    // √(2 branches × 8 blocks) = 4.
    near(stdev(&vs, "transformer.h.3.mlp.c_proj.weight"), 0.02 / 4.0);
    near(stdev(&vs, "transformer.h.3.attn.c_proj.weight"), 0.02 / 4.0);

    let vs = nn::VarStore::new(Device::Cpu);
    let _bert = BertMaskedLm::new(&vs.root(), &BertConfig { hidden_size: 64, ..tiny_bert() });
    let words = &vs.variables()["bert.embeddings.word_embeddings.weight"];
    assert_eq!(words.get(0).abs().max().double_value(&[]), 0.0, "the embedding of padding");
    near(words.slice(0, 1, None, 1).std(false).double_value(&[]), 0.02);

    let vs = nn::VarStore::new(Device::Cpu);
    let _resnet = ResNet::resnet18(&vs.root(), 3);
    near(stdev(&vs, "layer1.0.conv1.weight"), (2.0 / (9.0 * 64.0f64)).sqrt());
    // The output channels.
    near(stdev(&vs, "layer2.0.conv1.weight"), (2.0 / (9.0 * 128.0f64)).sqrt());
    near(stdev(&vs, "fc.weight"), (1.0 / (3.0 * 512.0f64)).sqrt());
    assert_eq!(vs.variables()["bn1.weight"].min().double_value(&[]), 1.0);
}

/// Counts the calls of each attention module, and the gradients of their outputs.
#[derive(Default)]
struct Attentions {
    calls: Vec<String>,
    gradients: usize,
}

#[hook]
impl Attentions {
    #[hook(of = "*.attn", only = train)]
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) {
        self.calls.push(cx.module().to_owned());
    }

    #[hook(of = "*.attn")]
    fn after_module_backward(&mut self, _: &Cx<AfterModuleBackward>) {
        self.gradients += 1;
    }
}

/// Returns two texts that begin differently, and their labels.
fn texts() -> (Tensor, Tensor) {
    let ids = Tensor::from_slice2(&[[1i64, 7, 2, 9, 4, 4, 6, 1], [2, 5, 5, 8, 3, 0, 1, 7]]);
    (ids.shallow_clone(), ids)
}

#[test]
fn a_model_trained_on_texts_reproduces_them() {
    tch::manual_seed(1);
    let vs = nn::VarStore::new(Device::Cpu);
    let gpt2 = Gpt2::new(&vs.root(), &Gpt2Config { n_embd: 16, ..tiny_gpt2() }.dropout(0.0));
    let task = Supervised::new(vs, gpt2, loss::next_token);
    let mut trainer = Trainer::builder(task)
        .optimizer(AdamW::new(3e-2).layer_decay(0.9, ["transformer.h.0.*", "transformer.h.1.*"]))
        .epochs(100)
        .hook(Attentions::default())
        .hook(trainer::hooks::Freeze::nothing().freeze_at(90, "transformer.w?e.*"))
        .discover(Discover::None)
        .build()
        .unwrap();
    let summary = trainer.fit(&mut InMemory::new(texts()).unwrap().batch_size(2), None).unwrap();
    assert!(summary.metrics["train/loss"] < 0.05, "{summary:?}");
    let attentions = trainer.hook::<Attentions>().unwrap();
    assert_eq!(
        attentions.calls[..3],
        ["transformer.h.0.attn", "transformer.h.1.attn", "transformer.h.0.attn"]
    );
    assert_eq!((attentions.calls.len(), attentions.gradients), (200, 200));

    let mut vs = nn::VarStore::new(Device::Cpu);
    let gpt2 = Gpt2::new(&vs.root(), &Gpt2Config { n_embd: 16, ..tiny_gpt2() });
    vs.copy(trainer.task().vars()).unwrap();
    let (ids, _) = texts();
    let written = gpt2.generate(&ids.narrow(1, 0, 1), &Generate::new(7)).unwrap();
    assert_eq!(Tensor::from_slice2(&written), ids.narrow(1, 1, 7));
}

#[test]
fn models_train_in_bf16() {
    #[track_caller]
    fn check<N: ModuleT + Send + 'static>(
        (vs, net): (nn::VarStore, N),
        loss: fn(&Tensor, &Tensor) -> Tensor,
        batch: (Tensor, Tensor),
    ) {
        let mut trainer = Trainer::builder(Supervised::new(vs, net, loss))
            .optimizer(Sgd::new(0.1))
            .hook(trainer::hooks::Amp::bf16())
            .discover(Discover::None)
            .build()
            .unwrap();
        let summary = trainer.fit(&mut InMemory::new(batch).unwrap().batch_size(2), None).unwrap();
        assert!(summary.metrics["train/loss"].is_finite(), "{summary:?}");
    }
    let labels = || Tensor::from_slice(&[0i64, 1]);
    let images = |size| Tensor::randn([2, 3, size, size], FLOAT);
    check(with_large_weights(|root| Gpt2::new(root, &tiny_gpt2())), loss::next_token, texts());
    check(with_large_weights(|root| BertMaskedLm::new(root, &tiny_bert())), loss::cross_entropy, texts());
    let classifier = with_large_weights(|root| BertClassifier::new(root, &tiny_bert()));
    check(classifier, loss::cross_entropy, (texts().0, labels()));
    let vit = with_large_weights(|root| Vit::new(root, &tiny_vit()));
    check(vit, loss::cross_entropy, (images(8), labels()));
    let resnet = with_large_weights(|root| ResNet::resnet18(root, 3));
    check(resnet, loss::cross_entropy, (images(32), labels()));
}

#[test]
fn no_token_of_gpt2_sees_a_later_one() {
    let (_vs, gpt2) = with_large_weights(|root| Gpt2::new(root, &tiny_gpt2()));
    let ids = tokens([2, 9]);
    let logits = ids.apply_t(&gpt2, false);
    let changed = ids.copy();
    let _ = changed.narrow(1, 5, 4).fill_(22);
    let changed = changed.apply_t(&gpt2, false);
    assert_close(&logits.narrow(1, 0, 5), &changed.narrow(1, 0, 5));
    let later = (logits.narrow(1, 5, 4) - changed.narrow(1, 5, 4)).abs().max();
    assert!(later.double_value(&[]) > 0.1);
}

#[test]
fn logits_are_the_same_with_and_without_a_cache() {
    let (_vs, gpt2) = with_large_weights(|root| Gpt2::new(root, &tiny_gpt2()));
    let ids = tokens([3, 16]);
    let whole = ids.apply_t(&gpt2, false);
    for parts in [vec![16], vec![5, 1, 1, 4, 5], vec![1; 16]] {
        let mut cache = Cache::new();
        let mut start = 0;
        for part in parts {
            assert_eq!(cache.time(), start);
            let logits = gpt2.forward_cached(&ids.narrow(1, start, part), &mut cache);
            assert_close(&logits, &whole.narrow(1, start, part));
            start += part;
        }
        assert_eq!(cache.time(), 16);
    }
}

/// Returns two sequences packed into one row: their tokens, positions and mask.
fn packed(one: &Tensor, two: &Tensor) -> (Tensor, Tensor, Tensor) {
    let times = [one.size()[1], two.size()[1]];
    let ids = Tensor::cat(&[one, two], 1);
    let positions = times.map(|time| Tensor::arange(time, (Kind::Int64, Device::Cpu)));
    let sequence = (0..).zip(times).map(|(nth, time)| Tensor::full([time], nth, (Kind::Int64, Device::Cpu)));
    let sequence = Tensor::cat(&sequence.collect::<Vec<_>>(), 0);
    let mask = sequence.unsqueeze(1).eq_tensor(&sequence.unsqueeze(0)).unsqueeze(0).unsqueeze(0);
    (ids, Tensor::cat(&positions, 0).unsqueeze(0), mask)
}

#[test]
fn packing_sequences_does_not_change_their_logits() {
    let (one, two) = (tokens([1, 6]), tokens([1, 9]));
    let (ids, positions, mask) = packed(&one, &two);
    let (_vs, gpt2) = with_large_weights(|root| Gpt2::new(root, &tiny_gpt2()));
    let together = gpt2.forward(&ids, Some(&positions), Some(&mask), false);
    assert_close(&together.narrow(1, 0, 6), &one.apply_t(&gpt2, false));
    assert_close(&together.narrow(1, 6, 9), &two.apply_t(&gpt2, false));

    let (_vs, bert) = with_large_weights(|root| BertMaskedLm::new(root, &tiny_bert()));
    let text = Text { positions: Some(positions), mask: Some(mask), ..ids.into() };
    let together = bert.forward(&text, false);
    assert_close(&together.narrow(1, 0, 6), &one.apply_t(&bert, false));
    assert_close(&together.narrow(1, 6, 9), &two.apply_t(&bert, false));
}

#[test]
fn padding_does_not_change_a_sequence() {
    let ids = tokens([1, 6]);
    let padded = Tensor::cat(&[&ids, &Tensor::zeros([1, 3], (Kind::Int64, Device::Cpu))], 1);
    let text = Text { mask: Some(padded.ne(0)), ..padded.shallow_clone().into() };
    let (_vs, bert) = with_large_weights(|root| BertClassifier::new(root, &tiny_bert()));
    assert_close(&bert.forward(&text, false), &ids.apply_t(&bert, false));
    let (_vs, gpt2) = with_large_weights(|root| Gpt2::new(root, &tiny_gpt2()));
    let logits = gpt2.forward(&padded, None, Some(&padded.ne(0)), false);
    assert_close(&logits.narrow(1, 0, 6), &ids.apply_t(&gpt2, false));
}

#[test]
fn dropout_is_active_in_training_only() {
    fn check(net: &impl ModuleT, input: &Tensor) {
        let [one, two] = [(); 2].map(|()| input.apply_t(net, false));
        assert_eq!(one, two);
        let [one, two] = [(); 2].map(|()| input.apply_t(net, true));
        assert_ne!(one, two);
    }
    let images = Tensor::ones([1, 3, 8, 8], FLOAT);
    check(&with_large_weights(|root| Gpt2::new(root, &tiny_gpt2().dropout(0.5))).1, &tokens([2, 5]));
    check(&with_large_weights(|root| BertMaskedLm::new(root, &tiny_bert().dropout(0.5))).1, &tokens([2, 5]));
    check(
        &with_large_weights(|root| BertClassifier::new(root, &tiny_bert().dropout(0.5))).1,
        &tokens([2, 5]),
    );
    check(&with_large_weights(|root| Vit::new(root, &tiny_vit().dropout(0.5))).1, &images);
    let (_vs, vit) = with_large_weights(|root| Vit::new(root, &tiny_vit()));
    assert_eq!(images.apply_t(&vit, true), images.apply_t(&vit, true), "a ViT has none by default");
}

#[test]
fn generated_texts_depend_on_the_seed_only() {
    let (_vs, gpt2) = with_large_weights(|root| Gpt2::new(root, &tiny_gpt2()));
    let prompts = tokens([3, 4]);
    let sample = |seed| Generate::new(12).sample(Sampling::new(seed).temperature(1.5).top_k(20).top_p(0.99));
    let texts = gpt2.generate(&prompts, &sample(1)).unwrap();
    assert_eq!(texts, gpt2.generate(&prompts, &sample(1).cache(false)).unwrap());
    assert_ne!(texts, gpt2.generate(&prompts, &sample(2)).unwrap());
    assert_eq!(
        texts[..1],
        gpt2.generate(&prompts.narrow(0, 0, 1), &sample(1)).unwrap(),
        "the first text alone"
    );
    assert!(texts.iter().all(|text| text.len() == 12));

    // Equal prompts are continued differently.
    let same = prompts.narrow(0, 0, 1).repeat([3, 1]);
    let texts = gpt2.generate(&same, &sample(1)).unwrap();
    assert_ne!(texts[0], texts[1]);

    // Greedy generation: each token is the most likely one after the previous tokens.
    let texts = gpt2.generate(&prompts, &Generate::new(12)).unwrap();
    assert_eq!(texts, gpt2.generate(&prompts, &Generate::new(12).cache(false)).unwrap());
    let whole = Tensor::cat(&[&prompts, &Tensor::from_slice2(&texts)], 1);
    let likely = whole.apply_t(&gpt2, false).argmax(-1, false);
    assert_eq!(likely.narrow(1, 3, 12), Tensor::from_slice2(&texts));

    // A text ends before its stop token; the other texts continue.
    let stop = texts[0][3];
    let stopped = gpt2.generate(&prompts, &Generate::new(12).stop(stop)).unwrap();
    for (text, stopped) in texts.iter().zip(&stopped) {
        let end = text.iter().position(|token| *token == stop).unwrap_or(12);
        assert_eq!(*stopped, text[..end]);
    }
}

#[test]
fn prompts_that_cannot_be_continued_are_errors() {
    let (vs, gpt2) = with_large_weights(|root| Gpt2::new(root, &tiny_gpt2()));
    let message = |prompt: &Tensor, new| gpt2.generate(prompt, &Generate::new(new)).unwrap_err().to_string();
    assert_eq!(gpt2.generate(&tokens([1, 5]), &Generate::new(12)).unwrap()[0].len(), 12);
    assert_eq!(
        message(&tokens([1, 5]), 13),
        "a prompt of 5 tokens and 13 new ones do not fit into the 16 positions of the model: shorten the prompt, or \
         generate at most 12"
    );
    assert!(message(&tokens([1, 0]), 1).contains("expected at least one token"));
    assert!(message(&tokens([1, 5]).squeeze(), 1).contains("expected [batch, time]"));
    assert!(message(&tokens([1, 5]).to_kind(Kind::Float), 1).contains("expected Int64"));
    assert!(message(&(tokens([1, 5]) + 22), 1).contains("less than 23"));
    assert!(message(&tokens([1, 5]), -1).contains("expected at least 0"));
    let _ = tch::no_grad(|| vs.variables()["transformer.ln_f.bias"].shallow_clone().fill_(f64::NAN));
    assert!(message(&tokens([1, 5]), 1).contains("are the weights loaded, and finite?"));
}

#[test]
fn layers_are_listed_from_the_first_to_the_last() {
    /// Returns the learning rates of the layers, from the first to the last, followed by the
    /// learning rate of all other parameters.
    fn rates<N>(build: impl FnOnce(&nn::Path<'_>) -> N, layers: fn(&N) -> Vec<String>) -> Vec<f64> {
        let vs = nn::VarStore::new(Device::Cpu);
        let layers = layers(&build(&vs.root()));
        let net = nn::func(Tensor::shallow_clone);
        let task = Supervised::new(vs, net, |logits: &Tensor, _: &Tensor| logits.sum(Kind::Float));
        let optimizer = AdamW::new(1.0).layer_decay(0.5, layers.clone());
        let trainer = Trainer::builder(task).optimizer(optimizer).discover(Discover::None).build().unwrap();
        let groups = trainer.optimizer().unwrap().groups();
        let patterns = layers.iter().map(|layer| Some(&layer[..])).chain([None]);
        patterns
            .filter_map(|pattern| Some(groups.iter().find(|group| group.pattern() == pattern)?.lr))
            .collect()
    }
    let expected = [0.125, 0.25, 0.5, 1.0];
    assert_eq!(rates(|root| Gpt2::new(root, &tiny_gpt2()), Gpt2::layers), expected);
    assert_eq!(rates(|root| BertMaskedLm::new(root, &tiny_bert()), BertMaskedLm::layers), expected);
    // Parameters between the last layer and the head, such as the pooler, have the head's rate.
    let expected = [0.125, 0.25, 0.5, 1.0, 1.0];
    assert_eq!(rates(|root| BertClassifier::new(root, &tiny_bert()), BertClassifier::layers), expected);
    assert_eq!(rates(|root| Vit::new(root, &tiny_vit()), Vit::layers), expected);
}

#[test]
fn losses_skip_ignored_labels() {
    let logits = Tensor::randn([2, 4, 5], FLOAT);
    let labels = Tensor::from_slice(&[3i64, 1, -100, 2, 0, -100, -100, 4]).view([2, 4]);
    let log_softmax = logits.log_softmax(-1, Kind::Float);
    let term = |row: i64, time: i64, label: i64| -log_softmax.double_value(&[row, time, label]);
    let expected = (term(0, 0, 3) + term(0, 1, 1) + term(0, 3, 2) + term(1, 0, 0) + term(1, 3, 4)) / 5.0;
    assert!((loss::cross_entropy(&logits, &labels).double_value(&[]) - expected).abs() < 1e-6);
    let probabilities = Tensor::from_slice(&[0.25f32, 0.75, 0.0, 0.0, 0.0]).view([1, 1, 5]);
    let mixed = 0.25 * term(0, 0, 0) + 0.75 * term(0, 0, 1);
    let loss = loss::cross_entropy(&logits.narrow(0, 0, 1).narrow(1, 0, 1), &probabilities);
    assert!((loss.double_value(&[]) - mixed).abs() < 1e-6);
    // The logits at a position predict the next token.
    let expected = (term(0, 0, 1) + term(0, 2, 2) + term(1, 2, 4)) / 3.0;
    assert!((loss::next_token(&logits, &labels).double_value(&[]) - expected).abs() < 1e-6);
    assert_eq!(loss::next_tokens(&labels), 3.0);
}

/// Returns the panic message of a forward pass.
fn panic_message(forward: impl FnOnce() -> Tensor) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(forward)).unwrap_err();
    panic.downcast_ref::<String>().cloned().unwrap()
}

#[test]
fn invalid_inputs_panic_and_name_what_is_expected() {
    let (_vs, gpt2) = with_large_weights(|root| Gpt2::new(root, &tiny_gpt2()));
    assert_eq!(
        panic_message(|| tokens([1, 17]).apply_t(&gpt2, false)),
        "a sequence of 17 tokens is longer than the 16 positions of the model: shorten it"
    );
    assert_eq!(
        panic_message(|| gpt2.forward(&tokens([1, 3]), None, Some(&Tensor::ones([3], FLOAT)), false)),
        "the attention mask has the shape [3]: expected [batch, time] or [batch, 1, time, time]"
    );
    let (_vs, vit) = with_large_weights(|root| Vit::new(root, &tiny_vit()));
    assert_eq!(
        panic_message(|| Tensor::zeros([2, 1, 8, 8], FLOAT).apply_t(&vit, false)),
        "images have the shape [2, 1, 8, 8]: expected [batch, 3, 8, 8]"
    );
}
