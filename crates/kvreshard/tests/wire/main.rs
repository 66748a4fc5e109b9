//! Layouts and tags as messages.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says so by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod layouts;
mod names;
mod refusals;
