use trainer::prelude::*;

#[hook]
fn print_size(cx: &Cx<AfterStep>) -> Result<()> {
    println!("{:?}", cx.batch::<Sentences>()?.tokens.size());
    Ok(())
}

struct Sizes;

#[hook]
impl Sizes {
    fn print(&mut self, cx: &Cx<AfterStep>) -> Result<()> {
        let batch = cx.batch::<std::rc::Rc<Sentence>>()?;
        println!("{:?}", batch.size());
        Ok(())
    }
}

fn main() {}
