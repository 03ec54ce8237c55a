use trainer::hooks::Ema;
use trainer::prelude::*;

struct Changes;

#[hook]
impl Changes {
    fn before_step(&mut self, cx: &mut Cx<Main<BeforeStep>>) {
        cx.skip_batch();
    }

    fn after_transfer(&mut self, cx: &mut Cx<Main<AfterTransfer>>) -> Result<()> {
        let _ = cx.batch_mut::<Tensor>()?;
        Ok(())
    }

    fn before_opt_step(&mut self, cx: &mut Cx<Main<BeforeOptStep>>) -> Result<()> {
        cx.set_grads_averaged();
        cx.drop_grads()
    }

    fn after_epoch(&mut self, cx: &mut Cx<Main<AfterEpoch>>) -> Result<()> {
        cx.hook_mut::<Ema>().map(drop)
    }
}

fn main() {}
