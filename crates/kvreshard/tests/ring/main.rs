//! The packed protocol: its messages, and what receiver and sender do, refuse and promise.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says so by panicking"
)]

mod alone;
mod bounds;
mod edges;
mod ends;
mod late;
mod machines;
mod messages;
mod pair;
mod requests;
