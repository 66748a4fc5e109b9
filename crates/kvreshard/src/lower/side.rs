//! One side's pages of a request, by number.

use crate::error::{Error, Result, Side};
use crate::layout::{GroupKind, RankLayout};
use crate::request::Request;
use crate::units::{add, div, rem};

/// One side's pages for one group.
pub(super) struct SidePages<'a> {
    pub(super) side: Side,
    pub(super) group: usize,
    pub(super) ids: &'a [i32],
    pub(super) ratio: u64,
    /// Number of the first page, counted from global token 0 on this rank.
    pub(super) first: u64,
    /// The state at which the first page begins.
    pub(super) state: u64,
    /// Ids must be below this.
    pub(super) limit: u64,
    pub(super) windowed: bool,
}

impl<'a> SidePages<'a> {
    pub(super) fn new(layout: &RankLayout, side: Side, group: usize, request: &'a Request, limit: u64) -> Result<Self> {
        let blocks = request.blocks(side, group)?;
        let about = layout.groups().get(group).ok_or_else(|| Error::overflow("group index"))?;
        let mut pages = Self {
            side,
            group,
            ids: blocks.ids(),
            ratio: about.pages_per_block(),
            first: 0,
            state: 0,
            limit: limit.min(1 << 31),
            windowed: about.window().is_some(),
        };
        if about.kind() == GroupKind::Tokens {
            let first = blocks.first_token();
            let states = layout.states_per_page(group);
            let expected = || "the first token of a page".to_owned();
            let Some(state) = about.tokens_per_state().state_at(first)? else {
                return Err(pages.bad("first token", first, expected()));
            };
            let position = layout.position().cp.count_below(state)?;
            if rem(position, states, "first token")? != 0 {
                return Err(pages.bad("first token", first, expected()));
            }
            pages.first = div(position, states, "first token")?;
            pages.state = state;
        }
        Ok(pages)
    }

    pub(super) fn bad(&self, field: &str, found: impl ToString, expected: String) -> Error {
        let field = field.to_owned();
        Error::Request { side: self.side, group: Some(self.group), field, found: found.to_string(), expected }
    }

    pub(super) fn first_token_text(&self) -> String {
        format!("at state {}", self.state)
    }

    /// The id of page number `number`; `None` when it lies before the first block.
    pub(super) fn page(&self, number: u64, writes: bool) -> Result<Option<i32>> {
        let Some(at) = number.checked_sub(self.first) else { return Ok(None) };
        let block = div(at, self.ratio, "page of a block")?;
        let Some(id) = usize::try_from(block).ok().and_then(|block| self.ids.get(block)) else {
            let role = if writes { "written" } else { "read" };
            let needed = add(block, 1, "blocks")?;
            return Err(self.bad("blocks", self.ids.len(), format!("at least {needed}, for the tokens to be {role}")));
        };
        self.id(*id, rem(at, self.ratio, "page of a block")?).map(Some)
    }

    /// The id of the `within`-th page of block `id`.
    pub(super) fn id(&self, id: i32, within: u64) -> Result<i32> {
        let page = u64::try_from(id).ok().and_then(|id| id.checked_mul(self.ratio)?.checked_add(within));
        match page.filter(|page| *page < self.limit).and_then(|page| i32::try_from(page).ok()) {
            Some(page) => Ok(page),
            None => {
                let blocks = div(self.limit, self.ratio, "blocks")?;
                Err(self.bad("block id", id, format!("at least 0 and below {blocks}")))
            }
        }
    }
}
