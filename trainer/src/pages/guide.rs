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
    hooks,
    lifecycle,
    training,
    methods,
    modules,
    metrics,
    data,
    optimizers,
    fine_tuning,
    models,
    settings,
    deployment,
    compatibility,
    checkpoints,
    gpus,
    distributed,
    clusters,
    records,
    runs,
    watching,
    errors,
    profiling,
    tape,
    testing,
    recipes,
    migration,
}
