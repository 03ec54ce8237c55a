//! Names that could clash with the names that an expansion uses, names with letters other than
//! ASCII, and raw identifiers.

#![deny(rust_2018_idioms, missing_docs)]

/// Every lowercase letter, as the name of an operation of the trainer's lifecycle and of a point
/// that needs something.
pub mod letters {
    trainer::lifecycle! {
        within step {
            /// A.
            operation a {
                /// A.
                point of_a: loss;
            }
            /// A.
            operation b {
                /// A.
                point of_b: loss;
            }
            /// A.
            operation c {
                /// A.
                point of_c: loss;
            }
            /// A.
            operation d {
                /// A.
                point of_d: loss;
            }
            /// A.
            operation e {
                /// A.
                point of_e: loss;
            }
            /// A.
            operation f {
                /// A.
                point of_f: loss;
            }
            /// A.
            operation g {
                /// A.
                point of_g: loss;
            }
            /// A.
            operation h {
                /// A.
                point of_h: loss;
            }
            /// A.
            operation i {
                /// A.
                point of_i: loss;
            }
            /// A.
            operation j {
                /// A.
                point of_j: loss;
            }
            /// A.
            operation k {
                /// A.
                point of_k: loss;
            }
            /// A.
            operation l {
                /// A.
                point of_l: loss;
            }
            /// A.
            operation m {
                /// A.
                point of_m: loss;
            }
            /// A.
            operation n {
                /// A.
                point of_n: loss;
            }
            /// A.
            operation o {
                /// A.
                point of_o: loss;
            }
            /// A.
            operation p {
                /// A.
                point of_p: loss;
            }
            /// A.
            operation q {
                /// A.
                point of_q: loss;
            }
            /// A.
            operation r {
                /// A.
                point of_r: loss;
            }
            /// A.
            operation s {
                /// A.
                point of_s: loss;
            }
            /// A.
            operation t {
                /// A.
                point of_t: loss;
            }
            /// A.
            operation u {
                /// A.
                point of_u: loss;
            }
            /// A.
            operation v {
                /// A.
                point of_v: loss;
            }
            /// A.
            operation w {
                /// A.
                point of_w: loss;
            }
            /// A.
            operation x {
                /// A.
                point of_x: loss;
            }
            /// A.
            operation y {
                /// A.
                point of_y: loss;
            }
            /// A.
            operation z {
                /// A.
                point of_z: loss;
            }
        }
    }
}

/// Every lowercase letter, as the name of a point that can be fired from anywhere.
pub mod points {
    trainer::lifecycle! {
        /// A.
        point a in train;
        /// A.
        point b in train;
        /// A.
        point c in train;
        /// A.
        point d in train;
        /// A.
        point e in train;
        /// A.
        point f in train;
        /// A.
        point g in train;
        /// A.
        point h in train;
        /// A.
        point i in train;
        /// A.
        point j in train;
        /// A.
        point k in train;
        /// A.
        point l in train;
        /// A.
        point m in train;
        /// A.
        point n in train;
        /// A.
        point o in train;
        /// A.
        point p in train;
        /// A.
        point q in train;
        /// A.
        point r in train;
        /// A.
        point s in train;
        /// A.
        point t in train;
        /// A.
        point u in train;
        /// A.
        point v in train;
        /// A.
        point w in train;
        /// A.
        point x in train;
        /// A.
        point y in train;
        /// A.
        point z in train;
    }
}

/// Names that the expansion refers to, of the trainer and of the standard library.
pub mod words {
    trainer::lifecycle! {
        within step {
            /// A.
            operation advice;
            /// A.
            operation after;
            /// A.
            operation all;
            /// A.
            operation alloc;
            /// A.
            operation around;
            /// A.
            operation at;
            /// A.
            operation availability;
            /// A.
            operation base;
            /// A.
            operation batch;
            /// A.
            operation before;
            /// A.
            operation begun;
            /// A.
            operation block;
            /// A.
            operation bool;
            /// A.
            operation call;
            /// A.
            operation cast;
            /// A.
            operation clone;
            /// A.
            operation core;
            /// A.
            operation counted;
            /// A.
            operation count;
            /// A.
            operation custom_moment;
            /// A.
            operation debug;
            /// A.
            operation declared;
            /// A.
            operation default;
            /// A.
            operation definition;
            /// A.
            operation deref;
            /// A.
            operation drop;
            /// A.
            operation eq;
            /// A.
            operation error;
            /// A.
            operation fire;
            /// A.
            operation fire_at_from;
            /// A.
            operation fireable_from;
            /// A.
            operation from;
            /// A.
            operation has;
            /// A.
            operation has_loss;
            /// A.
            operation has_task;
            /// A.
            operation has_batch;
            /// A.
            operation hook_def;
            /// A.
            operation hook_impl;
            /// A.
            operation hook_result;
            /// A.
            operation hooks;
            /// A.
            operation id;
            /// A.
            operation index;
            /// A.
            operation info;
            /// A.
            operation inventory;
            /// A.
            operation kept;
            /// A.
            operation kind;
            /// A.
            operation lifecycle;
            /// A.
            operation lifecycle_registration;
            /// A.
            operation loss;
            /// A.
            operation main;
            /// A.
            operation marker;
            /// A.
            operation module;
            /// A.
            operation moment;
            /// A.
            operation moment_info;
            /// A.
            operation moment_kind;
            /// A.
            operation moments;
            /// A.
            operation name;
            /// A.
            operation names;
            /// A.
            operation none;
            /// A.
            operation now;
            /// A.
            operation of;
            /// A.
            operation on_all_ranks;
            /// A.
            operation only_on;
            /// A.
            operation option;
            /// A.
            operation origin;
            /// A.
            operation own;
            /// A.
            operation path;
            /// A.
            operation phantom_data;
            /// A.
            operation phase;
            /// A.
            operation phase_marker;
            /// A.
            operation phase_of;
            /// A.
            operation phase_set;
            /// A.
            operation phases;
            /// A.
            operation point;
            /// A.
            operation ph;
            /// A.
            operation po;
            /// A.
            operation reached_in;
            /// A.
            operation result;
            /// A.
            operation run;
            /// A.
            operation self_type;
            /// A.
            operation send;
            /// A.
            operation shim;
            /// A.
            operation sized;
            /// A.
            operation some;
            /// A.
            operation stage;
            /// A.
            operation stages;
            /// A.
            operation state_of;
            /// A.
            operation static_;
            /// A.
            operation std;
            /// A.
            operation str;
            /// A.
            operation string;
            /// A.
            operation sync;
            /// A.
            operation task;
            /// A.
            operation trainer;
            /// A.
            operation train_er;
            /// A.
            operation type_id;
            /// A.
            operation u8;
            /// A.
            operation u32;
            /// A.
            operation unit;
            /// A.
            operation usize;
            /// A.
            operation val;
            /// A.
            operation value;
            /// A.
            operation vec;
            /// A.
            operation within;
            /// A.
            operation within_at;
            /// A.
            operation word;
        }
    }
}

/// Names that are keywords.
pub mod keywords {
    trainer::lifecycle! {
        within step {
            /// A.
            operation r#as;
            /// A.
            operation r#break;
            /// A.
            operation r#const;
            /// A.
            operation r#dyn;
            /// A.
            operation r#else;
            /// A.
            operation r#enum;
            /// A.
            operation r#extern;
            /// A.
            operation r#fn;
            /// A.
            operation r#for;
            /// A.
            operation r#if;
            /// A.
            operation r#impl;
            /// A.
            operation r#in;
            /// A.
            operation r#let;
            /// A.
            operation r#loop;
            /// A.
            operation r#match;
            /// A.
            operation r#mod;
            /// A.
            operation r#move;
            /// A.
            operation r#mut;
            /// A.
            operation r#pub;
            /// A.
            operation r#ref;
            /// A.
            operation r#return;
            /// A.
            operation r#static;
            /// A.
            operation r#struct;
            /// A.
            operation r#trait;
            /// A.
            operation r#type;
            /// A.
            operation r#unsafe;
            /// A.
            operation r#use;
            /// A.
            operation r#where;
            /// A.
            operation r#while;
            /// A.
            operation r#async;
            /// A.
            operation r#await;
            /// A.
            operation r#gen;
        }
    }
}

/// Things that are named like the expansion's type parameters.
pub mod things {
    trainer::lifecycle! {
        within step {
            /// A.
            operation look {
                /// A.
                point at_look;
            }
        }
        /// A.
        exists p: P from before_look to after_look;
        /// A.
        exists o: O from look to at_look;
        /// A.
        exists has: Has at at_look;
        /// A.
        exists r#type: Within at at_look;
        /// A.
        allows ph: Ph at at_look;
    }
}

/// Letters other than ASCII: with an uppercase letter, with an uppercase form of two letters, and
/// without case.
pub mod other_letters {
    trainer::lifecycle! {
        within step {
            /// A.
            point ähnlich;
            /// A.
            operation ßa in train;
            /// A.
            operation λάμδα {
                /// A.
                point ένα_δύο: loss;
            }
            /// A.
            point 点;
            /// A.
            operation 学习 {
                /// A.
                point 学_会;
            }
        }
        /// A.
        exists größe: HasGröße from before_λάμδα to after_λάμδα;
    }
}

/// Hooks that nobody adds to a trainer.
mod hooks {
    #![allow(dead_code)]

    use trainer::data::{Batch, Rows};
    use trainer::prelude::{Next, hook};
    use trainer::tch::Tensor;
    use trainer::{AfterStep, Cx};

    use super::{keywords, letters, other_letters, points, things, words};

    #[hook]
    fn at_p(_: &mut Cx<letters::BeforeP>) {}

    #[hook]
    fn p(_: &mut Cx<points::P>) {}

    #[hook]
    fn r#type(_: &mut Cx<keywords::BeforeType>) {}

    #[hook(after = optional(r#type))]
    fn r#match(
        cx: &mut Cx<keywords::Type>,
        next: Next<'_, keywords::Type>,
    ) -> trainer::Result<trainer::Done> {
        next.run(cx)
    }

    #[hook]
    fn größe(_: &mut Cx<other_letters::Ähnlich>) {}

    #[hook(before = größe)]
    fn 点(_: &mut Cx<other_letters::点>) {}

    #[hook]
    fn 学习(
        cx: &mut Cx<other_letters::学习>,
        next: Next<'_, other_letters::学习>,
    ) -> trainer::Result<trainer::Done> {
        next.run(cx)
    }

    struct Größe<'a, Ä>(&'a Ä);

    #[hook]
    impl<Ä: Sync> Größe<'static, Ä> {
        fn 終(&mut self, _: &mut Cx<other_letters::AfterΛάμδα>) {}

        #[hook]
        fn r#fn(&mut self, _: &mut Cx<words::AfterCore>) {}

        fn at(&mut self, _: &mut Cx<things::AtLook>) {}

        fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    }

    #[derive(Batch, Rows)]
    struct Straße {
        größe: Tensor,
        r#type: Tensor,
        点: Tensor,
    }
}

/// Batches that contain themselves.
pub mod recursive {
    use trainer::prelude::*;

    /// A tree.
    #[derive(Batch)]
    pub struct Tree {
        /// A value.
        pub value: Tensor,
        /// The children.
        pub children: Vec<Tree>,
    }

    /// A list.
    #[derive(Batch)]
    pub struct Words {
        /// A word.
        pub word: Tensor,
        /// The rest.
        pub rest: Option<Vec<Self>>,
    }
}

/// A lifecycle beside an import of the trainer's own `at`, and `tch`'s trait `Module` beside hooks
/// at modules.
pub mod imported {
    use trainer::prelude::*;
    use trainer::{at, tch::nn::Module};

    trainer::lifecycle! {
        within step {
            /// A look.
            operation look in train;
        }
    }

    /// Runs a module.
    #[hook]
    pub fn around(cx: &mut Cx<at::module_forward>, next: Next<'_, at::module_forward>) -> Result<Done> {
        next.run(cx)
    }

    /// Looks at the context of a module.
    pub fn look(_: &Cx<ModuleForward>) {}

    /// Looks after a look.
    #[hook]
    pub fn report(_: &Cx<AfterLook>) {}

    /// Applies a module.
    pub fn apply(module: &impl Module, xs: &Tensor) -> Tensor {
        module.forward(xs)
    }
}

fn main() {}
