use trainer::prelude::*;

struct Own(nn::VarStore);

impl Task for Own {
    type Batch = Tensor;
    type Pred = Tensor;
    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, batch: &Tensor, _: Mode) -> Result<Tensor> {
        Ok(batch.shallow_clone())
    }
    fn loss(&mut self, pred: &Tensor, _: &Tensor) -> Result<Tensor> {
        Ok(pred.mean(Kind::Float))
    }
    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<trainer::StepDone<'s>> {
        let predicted = step.pred()?;
        let differentiated = step.backward(predicted)?;
        step.opt_step(differentiated)
    }
}

fn main() {}
