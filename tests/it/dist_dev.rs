//! Development only.
mod distributed;
mod support;
