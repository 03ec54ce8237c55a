use trainer::prelude::*;

struct Mine(u64);

#[hook(state = self.0)]
impl Mine {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.0 += 1;
    }
}

#[hook]
impl Mine {
    fn after_epoch(&mut self, _: &mut Cx<AfterEpoch>) {
        self.0 = 0;
    }
}

#[hook(more)]
impl Mine {
    fn after_fit(&self, _: &mut Cx<AfterFit>) {}
}

struct Generic<T>(T);

#[hook]
impl<T> Generic<T> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

mod elsewhere {
    use trainer::prelude::*;

    #[hook]
    impl super::Generic<f32> {
        fn after_fit(&self, _: &mut Cx<AfterFit>) {}
    }
}

type Task = Supervised<nn::Sequential, fn(&Tensor, &Tensor) -> Tensor>;

fn used(builder: trainer::TrainerBuilder<Task>) {
    let _ = builder.hook(Mine(0)).hook(Generic(0.0_f32)).hook(Generic(0_u8));
}

fn main() {}
