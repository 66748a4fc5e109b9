//! What a transfer is asked to move: tokens, and on each side the blocks that hold them.

use std::sync::Arc;

use crate::error::{Error, Result, Side};
use crate::units::Interval;

/// The blocks of one group on one side, in token order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blocks {
    ids: Arc<[i32]>,
    first_token: u64,
}

impl Blocks {
    /// Scheduler blocks `ids`; the first one begins at global token `first_token`. A prefix hit is a `first_token` above 0, not a
    /// shorter tail: blocks are paired by token, never counted from the end of a list.
    pub fn new(ids: impl Into<Arc<[i32]>>, first_token: u64) -> Self {
        Self { ids: ids.into(), first_token }
    }

    /// The block ids.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// The global token at which the first block begins.
    pub const fn first_token(&self) -> u64 {
        self.first_token
    }
}

/// Tokens to move, and for each group of either side its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    tokens: Interval,
    local: Vec<Blocks>,
    remote: Vec<Blocks>,
    more: bool,
}

impl Request {
    /// `tokens` are global tokens; `local` and `remote` have one entry for each group of that side, in its order. Tokens before the
    /// first block of the destination are not wanted (it has them already); groups of states ignore tokens and move every block.
    pub const fn new(tokens: Interval, local: Vec<Blocks>, remote: Vec<Blocks>) -> Self {
        Self { tokens, local, remote, more: false }
    }

    /// The global tokens wanted.
    pub const fn tokens(&self) -> Interval {
        self.tokens
    }

    /// The same request as one part of a transfer of which later tokens come by other requests, before or after this one (chunked
    /// prefill). Then nothing after the end is touched: the end is not rounded up to a row's end, bytes after it are not reported to
    /// be cleared, a state of several tokens that still lacks some waits for the part that has them, and groups of states move with
    /// the part that has the last token.
    #[must_use]
    pub fn with_more(self, more: bool) -> Self {
        Self { more, ..self }
    }

    /// Whether later tokens come by other requests.
    pub const fn more(&self) -> bool {
        self.more
    }

    /// The blocks of every group of `side`.
    pub fn side(&self, side: Side) -> &[Blocks] {
        match side {
            Side::Local => &self.local,
            Side::Remote => &self.remote,
        }
    }

    /// The blocks of group `group` on `side`.
    ///
    /// # Errors
    /// [`Error::Request`] when the request has none for that group.
    pub fn blocks(&self, side: Side, group: usize) -> Result<&Blocks> {
        let lists = self.side(side);
        lists.get(group).ok_or_else(|| Error::Request {
            side,
            group: Some(group),
            field: "block lists".to_owned(),
            found: lists.len().to_string(),
            expected: "one for each group of that side".to_owned(),
        })
    }
}
