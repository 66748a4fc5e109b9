//! Which page goes with which, for one request.
//!
//! Blocks are paired by global token. For every cell of a period (a local and a remote page that share tokens) this keeps the page
//! ids of both sides; a cell that the wanted tokens cover in part is kept apart:
//!
//! ```text
//! wanted                   |=========================|
//! cells         |----------|----------|----------|----------|
//!                           whole      whole      partial: exact list, or rounded up to the page's end
//! ```

use crate::error::{Error, Result, Side};
use crate::layout::GroupKind;
use crate::plan::Plan;
use crate::plan::period::{Cell, Paging, Period};
use crate::request::Request;
use crate::units::{Interval, add, div, div_ceil, mul, sub, wide};

use super::order::{ascends, repeated, sort};
use super::side::SidePages;

/// The most pages, or pieces of pages, that one request leaves to be cleared.
const MAX_BARE: usize = 1 << 20;

/// Page ids of one cell, on both sides, in ascending order of the local ids.
#[derive(Debug, Clone, Default)]
pub(crate) struct CellPages {
    pub(crate) local: Vec<i32>,
    pub(crate) remote: Vec<i32>,
}

/// A cell of which only some states are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Partial {
    pub(crate) pair: usize,
    pub(crate) cell: usize,
    pub(crate) local_page: i32,
    pub(crate) remote_page: i32,
    /// The states wanted, counted from the start of the period.
    pub(crate) states: Interval,
    /// Which end of the row belongs to others, so that the row cannot be moved whole: the front, which is already there, or the
    /// back, which comes by another request. A back that nobody else fills is rounded up.
    pub(crate) kept: Option<&'static str>,
}

/// States of a destination page that no source byte will fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bare {
    pub(crate) pair: usize,
    pub(crate) page: i32,
    pub(crate) states: Interval,
}

/// The pages of one request, paired.
#[derive(Debug, Clone)]
pub struct Pairing {
    pub(crate) plan: Plan,
    /// For each pair of groups, each cell of its period.
    pub(crate) pages: Vec<Vec<CellPages>>,
    pub(crate) partial: Vec<Partial>,
    pub(crate) bare: Vec<Bare>,
}

impl Pairing {
    /// Pairs the blocks of `request`.
    ///
    /// # Errors
    /// [`Error::Request`] naming side, group and value: an id that is negative or not below the number of pages, a destination block
    /// named twice, blocks that begin or end inside what is wanted, a first token that is not at a page boundary.
    pub fn new(plan: &Plan, request: &Request) -> Result<Self> {
        let mut pairing = Self { plan: plan.clone(), pages: Vec::new(), partial: Vec::new(), bare: Vec::new() };
        for (index, groups) in plan.pairs().iter().enumerate() {
            let local = SidePages::new(plan.local(), Side::Local, groups.local, request, groups.limits.0)?;
            let remote = SidePages::new(plan.remote(), Side::Remote, groups.remote, request, groups.limits.1)?;
            let mut cells = vec![CellPages::default(); groups.period.cells.len()];
            match groups.kind {
                // A state is that of the last token, so it moves with the part of a transfer that has the last token.
                GroupKind::State if request.more() => {}
                GroupKind::State => pair_states(&local, &remote, &mut cells)?,
                GroupKind::Tokens => {
                    pairing.pair_tokens(index, &groups.period, &local, &remote, request, &mut cells)?;
                }
            }
            for pages in &mut cells {
                settle(pages, plan.direction().destination(), groups.local, groups.remote)?;
            }
            pairing.pages.push(cells);
        }
        Ok(pairing)
    }

    /// The plan that the pages are paired for.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The same, its end rounded up to whole rows, as ids move them; unchanged where prepared rows cannot serve the request.
    pub fn rounded(mut self) -> Self {
        if self.fits_rows() {
            self.partial.clear();
        }
        self
    }

    /// Whether prepared rows can serve the request. They cannot when the wanted tokens begin inside a row; their end is rounded up
    /// to the row's end, inside pages that the request owns alone.
    ///
    /// The end of a request with more to come is not rounded up: rows cannot serve it either when it ends inside one.
    pub fn fits_rows(&self) -> bool {
        self.partial.iter().all(|partial| partial.kept.is_none())
    }

    /// Whether a row is wanted in part, at either end of the tokens.
    pub fn cuts_rows(&self) -> bool {
        !self.partial.is_empty()
    }

    fn pair_tokens(
        &mut self,
        pair: usize,
        period: &Period,
        local: &SidePages<'_>,
        remote: &SidePages<'_>,
        request: &Request,
        out: &mut [CellPages],
    ) -> Result<()> {
        let tokens = request.tokens();
        let writes = self.plan.direction().destination();
        let to = if writes == Side::Local { local } else { remote };
        if to.ids.is_empty() || tokens.is_empty() {
            return Ok(());
        }
        let scale = self.plan.side(writes).groups().get(to.group).map(crate::layout::Group::tokens_per_state);
        let scale = scale.unwrap_or(crate::layout::TokensPerState::ONE);
        // A state of several tokens moves with the last of them: an interval that begins inside a state takes all of it, one that
        // ends inside leaves it to the interval that goes on.
        let start = scale.states_below(tokens.start())?.max(to.state);
        let end =
            if request.more() { scale.states_below(tokens.end())? } else { scale.states_covering(tokens.end())? };
        if let Some(wanted) = Interval::new(start, end).filter(|wanted| !wanted.is_empty()) {
            self.pair_turns(pair, period, (local, remote), (wanted, request.more()), out)?;
        }
        if request.more() { Ok(()) } else { self.lay_rest_bare(pair, to, end) }
    }

    /// Pairs the pages of all turns of the period that `wanted` touches.
    fn pair_turns(
        &mut self,
        pair: usize,
        period: &Period,
        (local, remote): (&SidePages<'_>, &SidePages<'_>),
        (wanted, more): (Interval, bool),
        out: &mut [CellPages],
    ) -> Result<()> {
        // Ranks that share no token pair nothing in any turn, of which a request may name as many as it likes.
        if period.cells.is_empty() {
            return Ok(());
        }
        let term = "state of a period";
        let mut turn = div(wanted.start(), period.states, term)?;
        let turns = div_ceil(wanted.end(), period.states, term)?;
        if let ([pages], Ok(count)) = (&mut *out, usize::try_from(sub(turns, turn, term)?)) {
            pages.local.reserve(count.min(local.ids.len()));
            pages.remote.reserve(count.min(remote.ids.len()));
        }
        while turn < turns {
            self.pair_turn(pair, period, (local, remote), turn, (wanted, more), out)?;
            turn = add(turn, 1, term)?;
            // Between the first and the last turn, equal pages pair one to one: whole stretches of both lists.
            let inner = sub(turns, turn, term)?.saturating_sub(1);
            if let Some((here, there)) = straight(period, local, remote, turn, inner) {
                let pages = out.first_mut().ok_or_else(|| Error::overflow("cell index"))?;
                pages.local.extend_from_slice(here);
                pages.remote.extend_from_slice(there);
                turn = add(turn, inner, term)?;
            }
        }
        Ok(())
    }

    /// Pairs the cells of one turn of the period.
    fn pair_turn(
        &mut self,
        pair: usize,
        period: &Period,
        sides: (&SidePages<'_>, &SidePages<'_>),
        turn: u64,
        (wanted, more): (Interval, bool),
        out: &mut [CellPages],
    ) -> Result<()> {
        let term = "state of a period";
        let (local, remote) = sides;
        let writes = self.plan.direction().destination();
        let (to, from) = if writes == Side::Local { sides } else { (remote, local) };
        let base = mul(turn, period.states, term)?;
        for (index, cell) in period.cells.iter().enumerate() {
            let reach = shifted(cell.reach, base)?;
            let Some(part) = reach.intersect(wanted) else { continue };
            let clip = Interval::new(sub(part.start(), base, term)?, sub(part.end(), base, term)?)
                .ok_or_else(|| Error::overflow(term))?;
            // Between the pieces of a cell lie states of other context-parallel ranks.
            if part != reach && cell.spans(Some(clip))?.is_empty() {
                continue;
            }
            let numbers = |pages: u64, page: u64| add(mul(turn, pages, term)?, page, term);
            let here = local.page(numbers(period.local_pages, cell.local_page)?, local.side == writes)?;
            let there = remote.page(numbers(period.remote_pages, cell.remote_page)?, remote.side == writes)?;
            let (target, source) = if writes == Side::Local { (here, there) } else { (there, here) };
            match (target, source) {
                // Pages before the destination's first block are there already.
                (None, _) => {}
                (Some(page), None) if from.windowed || to.windowed => self.lay_bare(pair, cell, page, clip, writes)?,
                (Some(_), None) => {
                    let found = from.first_token_text();
                    return Err(from.bad("first block", found, format!("at or before state {}", part.start())));
                }
                (Some(page), Some(other)) => {
                    let (here, there) = if writes == Side::Local { (page, other) } else { (other, page) };
                    let pages = out.get_mut(index).ok_or_else(|| Error::overflow("cell index"))?;
                    pages.local.push(here);
                    pages.remote.push(there);
                    if part != reach {
                        // What does not begin inside the row ends inside it.
                        let kept = match (part.start() > reach.start(), more) {
                            (true, _) => Some("start"),
                            (false, true) => Some("end"),
                            (false, false) => None,
                        };
                        self.partial.push(Partial {
                            pair,
                            cell: index,
                            local_page: here,
                            remote_page: there,
                            states: clip,
                            kept,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Wanted states whose source page is outside the window that the source kept.
    fn lay_bare(&mut self, pair: usize, cell: &Cell, page: i32, clip: Interval, writes: Side) -> Result<()> {
        for span in cell.spans(Some(clip))? {
            let at = if writes == Side::Local { span.local } else { span.remote };
            let states = Interval::new(at, add(at, span.len, "state in a page")?);
            let states = states.ok_or_else(|| Error::overflow("state in a page"))?;
            self.lay(Bare { pair, page, states })?;
        }
        Ok(())
    }

    /// The destination may be a peer, which says how many pages a block has.
    fn lay(&mut self, bare: Bare) -> Result<()> {
        if self.bare.len() >= MAX_BARE {
            let found = wide(self.bare.len()).saturating_add(1);
            return Err(Error::limit("pages of a request that nothing fills", found, wide(MAX_BARE)));
        }
        self.bare.push(bare);
        Ok(())
    }

    /// Everything after the last wanted state in the destination's pages: the rest of the last page, and pages beyond it.
    fn lay_rest_bare(&mut self, pair: usize, to: &SidePages<'_>, end: u64) -> Result<()> {
        let layout = self.plan.side(to.side);
        let paging = Paging { states: layout.states_per_page(to.group), context: layout.position().cp };
        let term = "position in a page";
        let end = paging.context.count_below(end)?;
        let mut number = div(end, paging.states, term)?.max(to.first);
        let mut within = end.saturating_sub(mul(number, paging.states, term)?);
        let listed = add(to.first, mul(wide(to.ids.len()), to.ratio, "listed pages")?, "listed pages")?;
        while number < listed {
            if let Some(page) = to.page(number, true)? {
                let states = Interval::new(within, paging.states).ok_or_else(|| Error::overflow(term))?;
                self.lay(Bare { pair, page, states })?;
            }
            number = add(number, 1, "listed pages")?;
            within = 0;
        }
        Ok(())
    }
}

/// States move whole: block with block, in the order given.
fn pair_states(local: &SidePages<'_>, remote: &SidePages<'_>, out: &mut [CellPages]) -> Result<()> {
    let count = |side: &SidePages<'_>| mul(wide(side.ids.len()), side.ratio, "pages of states");
    if count(local)? != count(remote)? {
        let expected = format!("{} pages, as many as on the remote side: states move whole", count(remote)?);
        return Err(local.bad("state blocks", count(local)?, expected));
    }
    let Some(pages) = out.first_mut() else { return Ok(()) };
    for (side, ids) in [(local, &mut pages.local), (remote, &mut pages.remote)] {
        for id in side.ids {
            for within in 0..side.ratio {
                ids.push(side.id(*id, within)?);
            }
        }
    }
    Ok(())
}

/// Orders by local id, so that neighbours in memory are neighbours in the list and NIXL can join them; refuses a destination page
/// that would be written twice.
fn settle(pages: &mut CellPages, writes: Side, local: usize, remote: usize) -> Result<()> {
    if !ascends(&pages.local) {
        sort(&mut pages.local, &mut pages.remote);
    }
    let (targets, group) = match writes {
        Side::Local => (&pages.local, local),
        Side::Remote => (&pages.remote, remote),
    };
    match repeated(targets) {
        None => Ok(()),
        Some(page) => Err(Error::Request {
            side: writes,
            group: Some(group),
            field: "page".to_owned(),
            found: page.to_string(),
            expected: "each destination page once".to_owned(),
        }),
    }
}

/// The ids of `turns` turns from `turn` on, where every turn is one page on both sides, a block is a page, and every id is in range;
/// `None` where that does not hold, and the turns are paired one by one with whatever error there is.
fn straight<'a>(
    period: &Period,
    local: &SidePages<'a>,
    remote: &SidePages<'a>,
    turn: u64,
    turns: u64,
) -> Option<(&'a [i32], &'a [i32])> {
    if turns == 0 || (period.cells.len(), period.local_pages, period.remote_pages) != (1, 1, 1) {
        return None;
    }
    let stretch = |side: &SidePages<'a>| {
        let start = usize::try_from(turn.checked_sub(side.first)?).ok()?;
        let end = start.checked_add(usize::try_from(turns).ok()?)?;
        let ids = side.ids.get(start..end).filter(|_| side.ratio == 1)?;
        // The sign of any `id` or `highest - id`: cannot wrap where `id` is not negative, and if it is, its own sign shows.
        let highest = i32::try_from(side.limit.checked_sub(1)?).ok()?;
        let signs = ids.iter().fold(0, |signs, id| signs | *id | highest.wrapping_sub(*id));
        (signs >= 0).then_some(ids)
    };
    Some((stretch(local)?, stretch(remote)?))
}

fn shifted(interval: Interval, by: u64) -> Result<Interval> {
    let term = "state of a period";
    Interval::new(add(interval.start(), by, term)?, add(interval.end(), by, term)?).ok_or_else(|| Error::overflow(term))
}
