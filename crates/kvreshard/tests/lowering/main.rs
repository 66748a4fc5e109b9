//! Lowering: plans and requests turned into rows, ids, lists, landings, tables, and what they are refused for.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says so by panicking"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../moved/mod.rs"]
mod moved;

mod costs;
mod descriptors;
mod landing;
mod pairing;
mod requests;
mod tables;
