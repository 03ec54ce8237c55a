//! The hooks of a program are its own, whatever the name of its crate: `tests/trainer.rs` compiles
//! this file into a crate with the name of the library.

use trainer::hooks::EarlyStopping;
use trainer::prelude::*;

/// A path like that of a built-in hook.
mod hooks {
    pub(super) mod mine {
        use trainer::prelude::*;

        /// Logs a metric under a name that only this hook knows.
        pub(crate) struct Watch(pub(crate) u64);

        #[hook(only = valid)]
        impl Watch {
            fn after_step(&mut self, cx: &mut Cx<AfterStep>) {
                self.0 += 1;
                cx.log("accuracy5", 0.5);
            }
        }

        /// Never added to a trainer.
        pub(crate) struct Absent;

        #[hook]
        impl Absent {
            fn after_step(&mut self, _: &Cx<AfterStep>) {}
        }

        /// Fails.
        pub(crate) struct Fails;

        #[hook]
        impl Fails {
            fn after_loss(&mut self, _: &Cx<AfterLoss>) -> Result<()> {
                Err(Error::msg("on purpose"))
            }
        }
    }
}

use hooks::mine::{Fails, Watch};

fn builder() -> trainer::TrainerBuilder<impl Task<Batch = (Tensor, Tensor)>> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root() / "fc", 4, 2, nn::LinearConfig::default());
    let loss = |logits: &Tensor, labels: &Tensor| logits.cross_entropy_for_logits(labels);
    Trainer::builder(Supervised::new(vs, net, loss))
        .optimizer(Sgd::new(0.1))
        .epochs(1)
        .discover(Discover::None)
}

fn rows() -> InMemory<(Tensor, Tensor)> {
    let inputs = Tensor::ones([8, 4], (Kind::Float, Device::Cpu));
    let labels = Tensor::zeros([8], (Kind::Int64, Device::Cpu));
    InMemory::new((inputs, labels)).unwrap().batch_size(4)
}

#[test]
fn a_hook_is_shown_and_checked_as_one_of_the_program_whatever_the_name_of_the_crate() {
    let this = module_path!();
    // The hook may log a metric of any name, so a name like that of a known metric is no mistake.
    let mut trainer =
        builder().hook(Watch(0)).hook(EarlyStopping::new("valid/accuracy5", Goal::Maximize)).build().unwrap();
    let table = trainer.describe_hooks();
    let text = table.terminal(100);
    assert!(text.contains("::…::Watch"), "not folded with built-in hooks: {text}");
    assert_eq!(table.at("after_step")[0], format!("{this}::hooks::mine::Watch"));
    let absent = format!("{this}::hooks::mine::Absent");
    assert!(table.not_added().contains(&absent.as_str()), "{absent} in {:?}", table.not_added());
    let summary = trainer.fit(&mut rows(), Some(&mut rows())).unwrap();
    assert_eq!(summary.metrics["valid/accuracy5"], 0.5);
}

#[test]
fn an_error_names_the_hook_with_its_source_whatever_the_name_of_the_crate() {
    let error = builder().hook(Fails).build().unwrap().fit(&mut rows(), None).unwrap_err().to_string();
    let name = format!("hook `{}::hooks::mine::Fails::after_loss` (", module_path!());
    assert!(error.starts_with(&name) && error.contains("provenance.rs:"), "{error}");
}
