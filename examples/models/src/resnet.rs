//! ResNet (He et al., 2015), with the variable names of torchvision.

use trainer::modules::{self, Name, Named, NamedT};
use trainer::prelude::*;
use trainer::tch::nn::init::{FanInOut, NonLinearity, NormalOrUniform};
use trainer::tch::nn::{Init, ModuleT};

type Relu = Named<nn::Func<'static>>;

fn relu(path: nn::Path<'_>) -> Relu {
    nn::func(Tensor::relu).named(path)
}

/// Creates a convolution without a bias. Its padding preserves the image size if the stride is 1.
fn conv(path: nn::Path<'_>, inputs: i64, outputs: i64, kernel: i64, stride: i64) -> Named<nn::Conv2D> {
    let ws_init = Init::Kaiming {
        dist: NormalOrUniform::Normal,
        fan: FanInOut::FanOut,
        non_linearity: NonLinearity::ReLU,
    };
    let config = nn::ConvConfig { stride, padding: kernel / 2, bias: false, ws_init, ..Default::default() };
    modules::named(path, |path| nn::conv2d(path, inputs, outputs, kernel, config))
}

fn norm(path: nn::Path<'_>, channels: i64) -> NamedT<nn::BatchNorm> {
    let config = nn::BatchNormConfig { ws_init: Init::Const(1.0), ..Default::default() };
    modules::named_t(path, |path| nn::batch_norm2d(path, channels, config))
}

/// A residual block, such as `layer1.0`.
#[derive(Debug)]
struct Block {
    name: Name,
    /// Two convolutions, or the three of a bottleneck, each with its batch norm.
    convolutions: Vec<(Named<nn::Conv2D>, NamedT<nn::BatchNorm>)>,
    relu: Relu,
    /// The convolution and batch norm of the shortcut, if the shapes of input and output differ.
    downsample: Option<(Name, Named<nn::Conv2D>, NamedT<nn::BatchNorm>)>,
}

impl Block {
    /// Creates a block from its convolutions' output channels, kernel sizes and strides.
    fn new(path: &nn::Path<'_>, inputs: i64, stride: i64, shapes: &[(i64, i64, i64)]) -> Self {
        let mut channels = inputs;
        let mut convolutions = Vec::new();
        for (nth, &(outputs, kernel, stride)) in (1..).zip(shapes) {
            convolutions.push((
                conv(path / format!("conv{nth}"), channels, outputs, kernel, stride),
                norm(path / format!("bn{nth}"), outputs),
            ));
            channels = outputs;
        }
        let downsample = (stride != 1 || inputs != channels).then(|| {
            let path = path / "downsample";
            let convolution = conv(&path / 0, inputs, channels, 1, stride);
            let norm = norm(&path / 1, channels);
            (path.into(), convolution, norm)
        });
        Block { name: path.into(), convolutions, relu: relu(path / "relu"), downsample }
    }
}

impl ModuleT for Block {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        self.name.run(xs, |xs| {
            let mut branch = xs.shallow_clone();
            for (nth, (conv, norm)) in self.convolutions.iter().enumerate() {
                if nth > 0 {
                    branch = branch.apply(&self.relu);
                }
                branch = branch.apply(conv).apply_t(norm, train);
            }
            let shortcut = match &self.downsample {
                None => xs.shallow_clone(),
                Some((name, conv, norm)) => name.run(xs, |xs| xs.apply(conv).apply_t(norm, train)),
            };
            (branch + shortcut).apply(&self.relu)
        })
    }
}

/// A ResNet that classifies images. As a [`ModuleT`], it maps images `[batch, 3, height, width]` to
/// logits `[batch, classes]`. In the deeper variants, which have bottlenecks, the second
/// convolution of a bottleneck has the stride, as in torchvision ("ResNet v1.5").
///
/// Its variables have torchvision's names, such as `layer1.0.conv1.weight`, which the timm models
/// on the hub (`timm/resnet50.tv_in1k`) also use. `LoadWeights::new()` reads files with these
/// names, and skips the counters `num_batches_tracked`. The modules of the network are named in the
/// same way: `conv1`, `bn1`, `relu`, `maxpool`, the blocks `layer1.0` … with `conv1`, `bn1` …,
/// `relu` and `downsample`, `avgpool` and `fc`.
///
/// ```
/// use models::ResNet;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = ResNet::resnet18(&vs.root(), 10);
/// let images = Tensor::zeros([2, 3, 32, 32], (Kind::Float, Device::Cpu));
/// assert_eq!(images.apply_t(&net, false).size(), [2, 10]);
/// ```
#[derive(Debug)]
pub struct ResNet {
    conv1: Named<nn::Conv2D>,
    bn1: NamedT<nn::BatchNorm>,
    relu: Relu,
    maxpool: Relu,
    layers: Vec<(Name, Vec<Block>)>,
    avgpool: Relu,
    fc: Named<nn::Linear>,
}

impl ResNet {
    /// Creates a ResNet-18 with random weights, usually at the root of a `VarStore`: 11.7 million
    /// parameters with 1000 classes.
    #[must_use]
    pub fn resnet18(path: &nn::Path<'_>, classes: i64) -> Self {
        ResNet::new(path, [2, 2, 2, 2], false, classes)
    }

    /// Creates a ResNet-34: 21.8 million parameters with 1000 classes.
    #[must_use]
    pub fn resnet34(path: &nn::Path<'_>, classes: i64) -> Self {
        ResNet::new(path, [3, 4, 6, 3], false, classes)
    }

    /// Creates a ResNet-50: 25.6 million parameters with 1000 classes.
    #[must_use]
    pub fn resnet50(path: &nn::Path<'_>, classes: i64) -> Self {
        ResNet::new(path, [3, 4, 6, 3], true, classes)
    }

    /// Creates a ResNet-101: 44.5 million parameters with 1000 classes.
    #[must_use]
    pub fn resnet101(path: &nn::Path<'_>, classes: i64) -> Self {
        ResNet::new(path, [3, 4, 23, 3], true, classes)
    }

    fn new(path: &nn::Path<'_>, blocks: [i64; 4], bottleneck: bool, classes: i64) -> Self {
        let mut channels = 64;
        let mut layers = Vec::new();
        for (nth, blocks) in (0..).zip(blocks) {
            let path = path / format!("layer{}", nth + 1);
            let width = 64 << nth;
            let mut layer = Vec::new();
            for block in 0..blocks {
                let stride = if nth > 0 && block == 0 { 2 } else { 1 };
                let shapes = if bottleneck {
                    vec![(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
                } else {
                    vec![(width, 3, stride), (width, 3, 1)]
                };
                layer.push(Block::new(&(&path / block), channels, stride, &shapes));
                channels = if bottleneck { 4 * width } else { width };
            }
            layers.push((path.into(), layer));
        }
        let bound = 1.0 / (channels as f64).sqrt();
        let uniform = Init::Uniform { lo: -bound, up: bound };
        let options = nn::LinearConfig { ws_init: uniform, bs_init: Some(uniform), bias: true };
        let pool = nn::func(|xs| xs.max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false));
        ResNet {
            conv1: conv(path / "conv1", 3, 64, 7, 2),
            bn1: norm(path / "bn1", 64),
            relu: relu(path / "relu"),
            maxpool: pool.named(path / "maxpool"),
            layers,
            avgpool: nn::func(|xs| xs.adaptive_avg_pool2d([1, 1])).named(path / "avgpool"),
            fc: modules::named(path / "fc", |path| nn::linear(path, channels, classes, options)),
        }
    }
}

impl ModuleT for ResNet {
    fn forward_t(&self, images: &Tensor, train: bool) -> Tensor {
        let xs = images.apply(&self.conv1).apply_t(&self.bn1, train).apply(&self.relu).apply(&self.maxpool);
        let xs = self.layers.iter().fold(xs, |xs, (name, blocks)| {
            name.run(&xs, |xs| blocks.iter().fold(xs.shallow_clone(), |xs, block| xs.apply_t(block, train)))
        });
        xs.apply(&self.avgpool).flatten(1, -1).apply(&self.fc)
    }
}
