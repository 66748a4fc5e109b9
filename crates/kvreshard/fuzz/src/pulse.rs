//! How far inputs get: a run that refuses all of them at the door proves nothing.

use std::sync::atomic::{AtomicU64, Ordering};

/// How far an input got.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// It was read.
    Begun,
    /// It is what the target is about: two layouts, a format, a message.
    Valid,
    /// It was not refused afterwards: a plan was made, a request was taken.
    Accepted,
}

static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Counts an input's stage; prints the counts at every power of two of inputs from 2^16 on.
pub fn pulse(stage: Stage) {
    let count = COUNTS[stage as usize].fetch_add(1, Ordering::Relaxed) + 1;
    if matches!(stage, Stage::Begun) && count >= 1 << 16 && count.is_power_of_two() {
        let [begun, valid, accepted] = [0, 1, 2].map(|stage: usize| COUNTS[stage].load(Ordering::Relaxed));
        eprintln!("of {begun} inputs {valid} were valid, {accepted} accepted");
    }
}
