//! How the tokens of two sides' pages line up.
//!
//! Page number, context-parallel rank and state in the page are digits of the global state. Where the two sides' radices differ,
//! the pattern repeats after a period; within it every boundary of either side makes a cut:
//!
//! ```text
//! local,  pages of 16   |0              |1              |2              |
//! remote, pages of 24   |0                      |1                      |
//! pieces                |-------------- |------ |------ |---------------|   one period of 48 states, 4 pieces, 4 cells
//! ```
//!
//! Pieces between the same two pages are one [`Cell`]: what a pair of pages exchanges.

use crate::error::{Error, Result};
use crate::shard::ContextParallel;
use crate::units::{Interval, add, div, lcm, mul, rem, sub, wide};

use super::axis::Span;

/// The most pieces of one period.
pub(crate) const MAX_PIECES: usize = 65_536;

/// How one side holds tokens: states a page, and its share of the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paging {
    pub(crate) states: u64,
    pub(crate) context: ContextParallel,
}

impl Paging {
    /// Global states after which page boundaries and dealing repeat.
    fn repeat(self) -> Result<u64> {
        let term = "period of pages and interleave";
        mul(lcm(self.states, self.context.interleave(), term)?, self.context.place().size(), term)
    }

    /// The local position of global state `state` and how many states follow without a boundary, if this rank holds it; else how
    /// many states until it may.
    fn at(self, state: u64) -> Result<std::result::Result<(u64, u64), u64>> {
        let term = "position of a state";
        let place = self.context.place();
        if place.size() == 1 {
            return Ok(Ok((state, sub(self.states, rem(state, self.states, term)?, term)?)));
        }
        let interleave = self.context.interleave();
        let within = rem(state, interleave, term)?;
        let owner = rem(div(state, interleave, term)?, place.size(), term)?;
        let dealt = sub(interleave, within, term)?;
        if owner != place.rank() {
            return Ok(Err(dealt));
        }
        let position = self.context.count_below(state)?;
        let page_left = sub(self.states, rem(position, self.states, term)?, term)?;
        Ok(Ok((position, dealt.min(page_left))))
    }
}

/// Consecutive states held by both sides, in one page on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The global states, counted from the start of the period.
    pub(crate) states: Interval,
    pub(crate) local_at: u64,
    pub(crate) remote_at: u64,
}

/// All pieces between one local and one remote page of a period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) local_page: u64,
    pub(crate) remote_page: u64,
    pub(crate) pieces: Vec<Piece>,
    /// From the first state to the last; states of other ranks may lie between.
    pub(crate) reach: Interval,
}

impl Cell {
    /// The stretches of axis `n` on both sides, clipped to `states` of the period and joined where both go on.
    pub(crate) fn spans(&self, states: Option<Interval>) -> Result<Vec<Span>> {
        let term = "state in a page";
        let mut spans: Vec<Span> = Vec::new();
        for piece in &self.pieces {
            let Some(part) = states.map_or(Some(piece.states), |states| piece.states.intersect(states)) else {
                continue;
            };
            let skip = sub(part.start(), piece.states.start(), term)?;
            let span = Span {
                local: add(piece.local_at, skip, term)?,
                remote: add(piece.remote_at, skip, term)?,
                len: part.len(),
            };
            match spans.last_mut() {
                Some(last)
                    if last.local.checked_add(last.len) == Some(span.local)
                        && last.remote.checked_add(last.len) == Some(span.remote) =>
                {
                    last.len = add(last.len, span.len, term)?;
                }
                _ => spans.push(span),
            }
        }
        Ok(spans)
    }
}

/// One period of both sides' pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) states: u64,
    pub(crate) local_pages: u64,
    pub(crate) remote_pages: u64,
    pub(crate) cells: Vec<Cell>,
}

impl Period {
    /// A period of whole states: page `i` with page `i`, nothing counted.
    pub(crate) fn whole() -> Self {
        let states = Interval::from_zero(1);
        let piece = Piece { states, local_at: 0, remote_at: 0 };
        Self {
            states: 1,
            local_pages: 1,
            remote_pages: 1,
            cells: vec![Cell { local_page: 0, remote_page: 0, pieces: vec![piece], reach: states }],
        }
    }

    /// The period of two pagings.
    ///
    /// # Errors
    /// [`Error::Limit`] when the two share no boundary within [`MAX_PIECES`] pieces.
    pub(crate) fn new(local: Paging, remote: Paging) -> Result<Self> {
        let term = "period of both sides' pages";
        let states = lcm(local.repeat()?, remote.repeat()?, term)?;
        let pages = |side: Paging| div(div(states, side.context.place().size(), term)?, side.states, term);
        let mut period = Self { states, local_pages: pages(local)?, remote_pages: pages(remote)?, cells: Vec::new() };
        let mut state = 0;
        let mut steps = 0_usize;
        while state < states {
            steps = steps.saturating_add(1);
            if steps > MAX_PIECES {
                return Err(Error::limit("pieces in one period of both sides' pages", wide(steps), wide(MAX_PIECES)));
            }
            let len = match (local.at(state)?, remote.at(state)?) {
                (Ok(here), Ok(there)) => {
                    let len = here.1.min(there.1).min(sub(states, state, term)?);
                    period.push(local, remote, state, len, here.0, there.0)?;
                    len
                }
                (Err(skip), Err(other)) => skip.max(other),
                (Err(skip), Ok(_)) | (Ok(_), Err(skip)) => skip,
            };
            state = add(state, len, term)?;
        }
        Ok(period)
    }

    fn push(&mut self, local: Paging, remote: Paging, state: u64, len: u64, here: u64, there: u64) -> Result<()> {
        let term = "position in a page";
        let states = Interval::new(state, add(state, len, term)?).ok_or_else(|| Error::overflow(term))?;
        let (local_page, remote_page) = (div(here, local.states, term)?, div(there, remote.states, term)?);
        let piece =
            Piece { states, local_at: rem(here, local.states, term)?, remote_at: rem(there, remote.states, term)? };
        // Page numbers never decrease with the state, so a pair of pages that was left does not come back.
        let last =
            self.cells.last_mut().filter(|cell| cell.local_page == local_page && cell.remote_page == remote_page);
        match last {
            Some(cell) => {
                cell.reach = Interval::new(cell.reach.start(), states.end()).ok_or_else(|| Error::overflow(term))?;
                cell.pieces.push(piece);
            }
            None => self.cells.push(Cell { local_page, remote_page, pieces: vec![piece], reach: states }),
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::shard::Place;

    fn paging(states: u64, (rank, size): (u64, u64), interleave: u64) -> Paging {
        Paging { states, context: ContextParallel::new(Place::new(rank, size).unwrap(), interleave).unwrap() }
    }

    /// For each cell the spans: local and remote position, and states.
    fn spans(local: Paging, remote: Paging) -> Vec<Vec<(u64, u64, u64)>> {
        let period = Period::new(local, remote).unwrap();
        let of = |span: Span| (span.local, span.remote, span.len);
        period.cells.iter().map(|cell| cell.spans(None).unwrap().into_iter().map(of).collect()).collect()
    }

    #[test]
    fn states_that_go_on_in_both_pages_are_one_span() {
        // The first of two ranks that deal two states each: 0, 1, 4 and 5 are a page.
        let dealt = paging(4, (0, 2), 2);
        assert_eq!(spans(dealt, dealt), [[(0, 0, 4)]]);
        // They are one behind the other in its page alone.
        assert_eq!(spans(dealt, paging(8, (0, 1), 1)), [[(0, 0, 2), (2, 4, 2)]]);
        assert_eq!(spans(paging(8, (0, 1), 1), dealt), [[(0, 0, 2), (4, 2, 2)]]);
        assert!(spans(dealt, paging(4, (1, 2), 2)).is_empty());
    }

    #[test]
    fn wanted_states_cut_spans() {
        let period = Period::new(paging(4, (0, 2), 2), paging(8, (0, 1), 1)).unwrap();
        let cell = period.cells.first().unwrap();
        let of = |start, end| cell.spans(Interval::new(start, end)).unwrap();
        assert_eq!(of(1, 5), [Span { local: 1, remote: 1, len: 1 }, Span { local: 2, remote: 4, len: 1 }]);
        assert_eq!(of(2, 4), []);
    }
}
