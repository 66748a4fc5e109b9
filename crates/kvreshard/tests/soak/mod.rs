//! Random pairs of ranks over all that a layout can say, and an oracle that shares nothing with the planner.

pub mod draw;
pub mod nest;
pub mod oracle;
pub mod world;
