//! Who holds which heads, and which tokens: the rules of tensor and context parallelism.

use crate::error::{Error, Result};
use crate::units::{Interval, add, div, mul, rem};

/// A rank's place along one kind of parallelism: `rank` of `size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    rank: u64,
    size: u64,
}

impl Place {
    /// The only rank of one.
    pub const ALONE: Self = Self { rank: 0, size: 1 };

    /// Rank `rank` of `size`.
    ///
    /// # Errors
    /// [`Error::Layout`] when `rank` is not below `size`.
    pub fn new(rank: u64, size: u64) -> Result<Self> {
        if rank < size {
            Ok(Self { rank, size })
        } else {
            Err(Error::layout(None, "parallel rank", format!("{rank} of {size}"), "a rank below the size"))
        }
    }

    /// The zero-based rank.
    pub const fn rank(self) -> u64 {
        self.rank
    }

    /// How many ranks there are.
    pub const fn size(self) -> u64 {
        self.size
    }

    /// The share of `total` heads or channels that this rank holds under vLLM's rule: `[rank*total/size, (rank+1)*total/size)`,
    /// or the single member `rank*total/size` when there are more ranks than members, so that neighbours hold replicas.
    ///
    /// ```text
    /// total 8, size 4:   rank 0 [0,2)  rank 1 [2,4)  rank 2 [4,6)  rank 3 [6,8)
    /// total 2, size 4:   rank 0 [0,1)  rank 1 [0,1)  rank 2 [1,2)  rank 3 [1,2)
    /// ```
    ///
    /// # Errors
    /// [`Error::Overflow`] when a product does not fit.
    pub fn share(self, total: u64) -> Result<Interval> {
        let term = "rank * total";
        let start = div(mul(self.rank, total, term)?, self.size, term)?;
        let end = if self.size > total {
            add(start, 1, term)?
        } else {
            div(mul(add(self.rank, 1, term)?, total, term)?, self.size, term)?
        };
        Interval::new(start, end).ok_or_else(|| Error::overflow(term))
    }
}

/// How context parallelism deals tokens to ranks: position `p` belongs to rank `(p / interleave) % size`.
///
/// ```text
/// size 2, interleave 2:   token   0 1 2 3 4 5 6 7 8
///                         rank    0 0 1 1 0 0 1 1 0
///                         local   0 1 0 1 2 3 2 3 4
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContextParallel {
    place: Place,
    interleave: u64,
}

impl ContextParallel {
    /// One rank holds every token.
    pub const WHOLE: Self = Self { place: Place::ALONE, interleave: 1 };

    /// A rank's share when runs of `interleave` states are dealt in turn.
    ///
    /// # Errors
    /// [`Error::Layout`] when `interleave` is zero.
    pub fn new(place: Place, interleave: u64) -> Result<Self> {
        if interleave == 0 {
            return Err(Error::layout(None, "cp_interleave", 0, "at least 1"));
        }
        // With one rank nothing is dealt, so every interleave means the same.
        let interleave = if place.size() == 1 { 1 } else { interleave };
        Ok(Self { place, interleave })
    }

    /// The rank and the number of ranks.
    pub const fn place(self) -> Place {
        self.place
    }

    /// How many consecutive states a rank gets at a time.
    pub const fn interleave(self) -> u64 {
        self.interleave
    }

    /// How many states below the global state `state` belong to this rank: the local position of the first one at or after it.
    pub(crate) fn count_below(self, state: u64) -> Result<u64> {
        let term = "local position of a global token";
        let round_states = mul(self.interleave, self.place.size, term)?;
        let round = div(state, round_states, term)?;
        let within = rem(state, round_states, term)?;
        let mine = within.saturating_sub(mul(self.place.rank, self.interleave, term)?).min(self.interleave);
        add(mul(round, self.interleave, term)?, mine, term)
    }
}
