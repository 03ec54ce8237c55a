/// What the payloads are.
pub mod shapes {
    /// A shape.
    pub trait Shape {}
    /// Samples that borrow.
    pub struct Samples<'a>(pub &'a [u8]);
}

trainer::lifecycle! {
    within step {
        /// Without a lifetime.
        point one(&u8);
        /// With a lifetime.
        point two((u8, &'a u8));
        /// With an elided lifetime.
        point three(crate::shapes::Samples<'_>);
        /// Without a name.
        point four(impl crate::shapes::Shape);
        /// Without a size.
        point five(dyn crate::shapes::Shape + Send);
        /// A text.
        point six(str);
        /// Several values.
        point seven([u8]);
        /// Left out.
        point eight(_);
    }
}

fn main() {}
