#![doc = include_str!(concat!(env!("OUT_DIR"), "/guide/README.md"))]

/// Declares a module for each page that the build script generated from `guide/*.md`.
macro_rules! pages {
    ($($name:ident,)*) => {$(
        #[doc = include_str!(concat!(env!("OUT_DIR"), "/guide/", stringify!($name), ".md"))]
        pub mod $name {}
    )*};
}

pages! {
    getting_started,
    data,
    training,
    metrics,
    records,
    checkpoints,
    hooks,
    lifecycle,
    testing,
    methods,
    optimizers,
    models,
    fine_tuning,
    modules,
    settings,
    runs,
    watching,
    errors,
    profiling,
    tape,
    deployment,
    gpus,
    distributed,
    clusters,
    recipes,
    compatibility,
    migration,
}
