//! Every form of expansion, in a program that forbids every stable lint of rustc and the common
//! ones of clippy: an expansion must cause none of them, and must not allow one, which `forbid`
//! rejects. The exception is `non_upper_case_globals`, which `inventory::submit!` allows.

#![forbid(
    aarch64_softfloat_neon,
    absolute_paths_not_starting_with_crate,
    ambiguous_associated_items,
    ambiguous_derive_helpers,
    ambiguous_glob_imported_traits,
    ambiguous_glob_imports,
    ambiguous_glob_reexports,
    ambiguous_import_visibilities,
    ambiguous_negative_literals,
    ambiguous_panic_imports,
    ambiguous_wide_pointer_comparisons,
    anonymous_parameters,
    arithmetic_overflow,
    array_into_iter,
    asm_sub_register,
    async_fn_in_trait,
    bad_asm_style,
    bare_trait_objects,
    binary_asm_labels,
    bindings_with_variant_name,
    boxed_slice_into_iter,
    break_with_label_and_loop,
    clashing_extern_declarations,
    closure_returning_async_block,
    coherence_leak_check,
    conflicting_repr_hints,
    confusable_idents,
    const_evaluatable_unchecked,
    const_item_interior_mutations,
    const_item_mutation,
    dangerous_implicit_autorefs,
    dangling_pointers_from_locals,
    dangling_pointers_from_temporaries,
    dead_code,
    dependency_on_unit_never_type_fallback,
    deprecated,
    deprecated_in_future,
    deprecated_safe_2024,
    deprecated_where_clause_location,
    deref_into_dyn_supertrait,
    deref_nullptr,
    double_negations,
    drop_bounds,
    dropping_copy_types,
    dropping_references,
    duplicate_macro_attributes,
    dyn_drop,
    edition_2024_expr_fragment_specifier,
    elided_lifetimes_in_associated_constant,
    elided_lifetimes_in_paths,
    ellipsis_inclusive_range_patterns,
    enum_intrinsics_non_enums,
    explicit_builtin_cfgs_in_flags,
    explicit_outlives_requirements,
    exported_private_dependencies,
    ffi_unwind_calls,
    for_loops_over_fallibles,
    forbidden_lint_groups,
    forgetting_copy_types,
    forgetting_references,
    function_casts_as_integer,
    function_item_references,
    hidden_glob_reexports,
    if_let_rescope,
    ill_formed_attribute_input,
    impl_trait_overcaptures,
    impl_trait_redundant_captures,
    improper_ctypes,
    improper_ctypes_definitions,
    improper_gpu_kernel_arg,
    incomplete_features,
    incomplete_include,
    ineffective_unstable_trait_impl,
    inline_always_mismatching_target_features,
    inline_no_sanitize,
    integer_to_ptr_transmutes,
    internal_eq_trait_method_impls,
    internal_features,
    invalid_atomic_ordering,
    invalid_doc_attributes,
    invalid_from_utf8,
    invalid_from_utf8_unchecked,
    invalid_macro_export_arguments,
    invalid_nan_comparisons,
    invalid_null_arguments,
    invalid_reference_casting,
    invalid_type_param_default,
    invalid_value,
    irrefutable_let_patterns,
    keyword_idents_2018,
    keyword_idents_2024,
    large_assignments,
    late_bound_lifetime_arguments,
    legacy_derive_helpers,
    let_underscore_drop,
    let_underscore_lock,
    linker_messages,
    long_running_const_eval,
    macro_expanded_macro_exports_accessed_by_absolute_paths,
    macro_use_extern_crate,
    malformed_diagnostic_attributes,
    malformed_diagnostic_format_literals,
    map_unit_fn,
    meta_variable_misuse,
    mismatched_lifetime_syntaxes,
    misplaced_diagnostic_attributes,
    missing_abi,
    missing_copy_implementations,
    missing_debug_implementations,
    missing_docs,
    missing_gpu_kernel_export_name,
    missing_unsafe_on_extern,
    mixed_script_confusables,
    mutable_transmutes,
    named_arguments_used_positionally,
    named_asm_labels,
    never_type_fallback_flowing_into_unsafe,
    no_mangle_const_items,
    no_mangle_generic_items,
    non_ascii_idents,
    non_camel_case_types,
    non_contiguous_range_endpoints,
    non_fmt_panics,
    non_local_definitions,
    non_shorthand_field_patterns,
    non_snake_case,
    noop_method_call,
    opaque_hidden_inferred_bound,
    out_of_scope_macro_calls,
    overflowing_literals,
    overlapping_range_endpoints,
    path_statements,
    patterns_in_fns_without_body,
    private_bounds,
    private_interfaces,
    proc_macro_derive_resolution_fallback,
    ptr_to_integer_transmute_in_consts,
    pub_use_of_private_extern_crate,
    redundant_imports,
    redundant_lifetimes,
    redundant_semicolons,
    refining_impl_trait_internal,
    refining_impl_trait_reachable,
    renamed_and_removed_lints,
    repr_c_enums_larger_than_int,
    repr_transparent_non_zst_fields,
    rtsan_nonblocking_async,
    rust_2021_incompatible_closure_captures,
    rust_2021_incompatible_or_patterns,
    rust_2021_prefixes_incompatible_syntax,
    rust_2021_prelude_collisions,
    rust_2024_guarded_string_incompatible_syntax,
    rust_2024_incompatible_pat,
    rust_2024_prelude_collisions,
    self_constructor_from_outer_item,
    semicolon_in_expressions_from_macros,
    single_use_lifetimes,
    soft_unstable,
    special_module_name,
    stable_features,
    static_mut_refs,
    suspicious_double_ref_op,
    tail_expr_drop_order,
    text_direction_codepoint_in_comment,
    text_direction_codepoint_in_literal,
    trivial_bounds,
    trivial_casts,
    trivial_numeric_casts,
    type_alias_bounds,
    tyvar_behind_raw_pointer,
    uncommon_codepoints,
    unconditional_panic,
    unconditional_recursion,
    uncovered_param_in_projection,
    undropped_manually_drops,
    unexpected_cfgs,
    unfulfilled_lint_expectations,
    ungated_async_fn_track_caller,
    uninhabited_static,
    unit_bindings,
    unknown_crate_types,
    unknown_diagnostic_attributes,
    unknown_lints,
    unnameable_test_items,
    unnameable_types,
    unnecessary_transmutes,
    unpredictable_function_pointer_comparisons,
    unreachable_cfg_select_predicates,
    unreachable_code,
    unreachable_patterns,
    unreachable_pub,
    unsafe_attr_outside_unsafe,
    unsafe_code,
    unsafe_op_in_unsafe_fn,
    unstable_features,
    unstable_name_collisions,
    unstable_syntax_pre_expansion,
    unsupported_calling_conventions,
    unused_allocation,
    unused_assignments,
    unused_associated_type_bounds,
    unused_attributes,
    unused_braces,
    unused_comparisons,
    unused_doc_comments,
    unused_extern_crates,
    unused_features,
    unused_import_braces,
    unused_imports,
    unused_labels,
    unused_lifetimes,
    unused_macro_rules,
    unused_macros,
    unused_must_use,
    unused_mut,
    unused_parens,
    unused_qualifications,
    unused_results,
    unused_unsafe,
    unused_variables,
    unused_visibilities,
    useless_deprecated,
    useless_ptr_null_checks,
    uses_power_alignment,
    varargs_without_pattern,
    variant_size_differences,
    while_true
)]
#![forbid(clippy::all, clippy::pedantic)]

use trainer::checkpoint::State;
use trainer::data::{Batch, Rows};
use trainer::prelude::{Next, hook};
use trainer::tch::Tensor;
use trainer::{AfterModuleForward, AfterStep, Backward, BeforeStep, Cx, Main, ModuleForward};

#[hook]
fn after_step(_: &mut Cx<AfterStep>) {}

#[hook(ord = -3, only(train, valid), every = 10, before = optional(after_step))]
fn named(cx: &mut Cx<BeforeStep>) -> trainer::Result<()> {
    if cx.counters().epoch > 9 {
        return Err(trainer::Error::msg("more epochs than expected"));
    }
    Ok(())
}

#[hook(after(named))]
fn by_path(_: &mut Cx<Main<AfterStep>>) {}

#[hook(every = 2)]
fn around(cx: &mut Cx<Backward>, next: Next<'_, Backward>) -> trainer::Result<trainer::Done> {
    next.run(cx)
}

#[hook(of("encoder.*", optional("head")))]
fn after_module_forward(_: &mut Cx<AfterModuleForward>) {}

mod reexported {
    pub(crate) use ::trainer as training;
}

#[hook(crate = reexported::training)]
fn from_elsewhere(_: &mut Cx<AfterStep>) {}

/// A hook type whose value the trainer creates.
#[derive(Debug, Default)]
struct Made {
    modules: trainer::modules::Patterns,
    steps: u64,
}

#[hook(auto, single, state, after = after_step)]
impl Made {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.steps += 1;
    }

    #[hook(of = self.modules)]
    fn inside(
        &self,
        cx: &mut Cx<ModuleForward>,
        next: Next<'_, ModuleForward>,
    ) -> trainer::Result<trainer::Done> {
        assert!(self.steps < u64::MAX);
        next.run(cx)
    }

    #[hook(every = 2, only = train)]
    fn second(&self, _: &mut Cx<AfterStep>) {
        assert!(self.steps < u64::MAX);
    }
}

impl State for Made {
    fn save(&self) -> trainer::Result<trainer::checkpoint::Saved> {
        Ok(trainer::checkpoint::Saved::new())
    }

    fn load(&mut self, _: &trainer::checkpoint::Saved) -> trainer::Result<()> {
        Ok(())
    }
}

/// A generic hook type.
#[derive(Debug)]
struct Generic<T, const N: usize>([T; N]);

#[hook]
impl<T: Clone + Send + 'static, const N: usize> Generic<T, N> {
    fn before_step(&mut self, _: &mut Cx<BeforeStep>) {
        drop(self.0.first().cloned());
    }
}

/// A lifecycle.
mod own {
    trainer::lifecycle! {
        within step {
            /// An operation with an operation inside.
            operation look: batch + loss in train counts batches {
                /// An operation that inherits nouns.
                operation deeper: gradients {
                    /// A point within two operations.
                    point at_bottom: stop;
                }
                again pred;
            }
        }
        /// A point that can be fired from anywhere.
        point anywhere in train | valid;

        /// A custom value.
        exists sight: HasSight from before_deeper to after_look;
        /// A custom method.
        allows glance: CanGlance at at_bottom;
    }
}

#[hook]
fn bottom(_: &mut Cx<own::AtBottom>) {}

/// Named fields.
#[derive(Debug, Batch, Rows)]
struct Named<T> {
    r#type: Tensor,
    other: T,
}

/// Unnamed fields.
#[derive(Debug, Batch)]
#[batch(crate = reexported::training)]
struct Unnamed(Tensor, #[batch(skip)] u8);

fn main() {
    drop((Made::default(), Generic([0_u8])));
    drop(Named { r#type: Tensor::new(), other: Tensor::new() });
    let unnamed = Unnamed(Tensor::new(), 0);
    assert_eq!(unnamed.1, 0);
}
