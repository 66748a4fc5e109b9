//! Decisions: new ones from a seed, or a list of old ones, which is what a failure is kept as and shrunk by.

/// Numbers that decisions are made of; 0 when a list is used up.
pub struct Draw {
    pub made: Vec<u16>,
    at: usize,
    state: Option<u64>,
}

impl Draw {
    /// New decisions, the same for the same seed and case.
    pub fn seeded(seed: u64, case: u64) -> Self {
        let state = mix(mix(seed) ^ case);
        Self { made: Vec::new(), at: 0, state: Some(state) }
    }

    /// Old ones.
    pub fn replayed(made: Vec<u16>) -> Self {
        Self { made, at: 0, state: None }
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        let chosen = match (self.made.get(self.at), &mut self.state) {
            (Some(chosen), _) => *chosen,
            (None, Some(state)) => {
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let chosen = u16::try_from(mix(*state) >> 48).unwrap();
                self.made.push(chosen);
                chosen
            }
            (None, None) => 0,
        };
        self.at += 1;
        u64::from(chosen) % limit
    }

    /// A number from `low` to `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// An index of a list of that length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap()
    }

    /// One of a list.
    pub fn of<T: Clone>(&mut self, list: &[T]) -> T {
        let index = self.index(list.len());
        list[index].clone()
    }

    /// True about `percent` times in a hundred; 0 is false.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) >= 100 - percent
    }

    /// Another order; zeros leave it.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in 0..items.len().saturating_sub(1) {
            let with = at + self.index(items.len() - at);
            items.swap(at, with);
        }
    }
}

fn mix(mut value: u64) -> u64 {
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)] {
        value = (value ^ (value >> shift)).wrapping_mul(factor);
    }
    value ^ (value >> 31)
}

/// The shortest list of decisions that `fails` still, as far as cutting pieces out and making numbers smaller finds it.
pub fn shrink(mut best: Vec<u16>, mut fails: impl FnMut(&[u16]) -> bool) -> Vec<u16> {
    loop {
        let before = best.clone();
        let mut size = best.len();
        while size > 0 {
            let mut at = 0;
            while at + size <= best.len() {
                let mut shorter = best.clone();
                shorter.drain(at..at + size);
                if fails(&shorter) {
                    best = shorter;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
        for at in 0..best.len() {
            for smaller in [0, best[at] / 2, best[at].saturating_sub(1)] {
                if smaller < best[at] {
                    let mut other = best.clone();
                    other[at] = smaller;
                    if fails(&other) {
                        best = other;
                    }
                }
            }
        }
        while best.last() == Some(&0) {
            best.pop();
        }
        if best == before {
            return best;
        }
    }
}
