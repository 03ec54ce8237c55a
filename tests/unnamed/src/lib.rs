//! Hooks that no program names, so that the linker leaves them out.

use trainer::prelude::*;

/// Never runs.
#[hook]
pub fn before_fit(_: &mut Cx<BeforeFit>) {}
