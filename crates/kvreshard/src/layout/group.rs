//! Layers that share block ids.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::units::{div, div_ceil, gcd, mul, rem};

/// What a block of a group holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Consecutive tokens: attention caches. Pages have an axis `n`.
    Tokens,
    /// One whole state: Mamba and its like. Never cut by token.
    State,
}

impl GroupKind {
    /// `tokens` or `state`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::State => "state",
        }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for GroupKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "tokens" => Ok(Self::Tokens),
            "state" => Ok(Self::State),
            other => Err(Error::layout(None, "group kind", other, "tokens or state")),
        }
    }
}

/// How many tokens one index of axis `n` stands for, as a fraction: 4/1 where a compressor keeps one state for four tokens, 1/4
/// where four states belong to a token (Whisper's pooling).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokensPerState {
    tokens: u64,
    states: u64,
}

impl TokensPerState {
    /// One token a state.
    pub const ONE: Self = Self { tokens: 1, states: 1 };

    /// `tokens / states`, in lowest terms.
    ///
    /// # Errors
    /// [`Error::Layout`] when either is zero.
    pub fn new(tokens: u64, states: u64) -> Result<Self> {
        if tokens == 0 || states == 0 {
            let found = format!("{tokens}/{states}");
            return Err(Error::layout(None, "tokens_per_state", found, "a positive fraction"));
        }
        let common = gcd(tokens, states);
        let term = "tokens_per_state";
        Ok(Self { tokens: div(tokens, common, term)?, states: div(states, common, term)? })
    }

    /// The numerator.
    pub const fn tokens(self) -> u64 {
        self.tokens
    }

    /// The denominator.
    pub const fn states(self) -> u64 {
        self.states
    }

    /// The state that begins at `token`, or `None` when `token` lies inside a state.
    pub(crate) fn state_at(self, token: u64) -> Result<Option<u64>> {
        if rem(token, self.tokens, "tokens_per_state")? != 0 {
            return Ok(None);
        }
        Ok(Some(mul(div(token, self.tokens, "tokens_per_state")?, self.states, "token * states per token")?))
    }

    /// How many states have all their tokens below `token`: the state that holds `token`, or begins at it.
    pub(crate) fn states_below(self, token: u64) -> Result<u64> {
        div(mul(token, self.states, "token * states per token")?, self.tokens, "tokens_per_state")
    }

    /// One past the last state that holds a token below `token`.
    pub(crate) fn states_covering(self, token: u64) -> Result<u64> {
        div_ceil(mul(token, self.states, "token * states per token")?, self.tokens, "tokens_per_state")
    }
}

impl fmt::Display for TokensPerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.states == 1 { write!(f, "{}", self.tokens) } else { write!(f, "{}/{}", self.tokens, self.states) }
    }
}

/// Layers that share block ids.
///
/// A block of the scheduler is `pages_per_block` consecutive kernel pages: block `b` is pages `b * pages_per_block ..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Group {
    kind: GroupKind,
    pages_per_block: u64,
    tokens_per_state: TokensPerState,
    window: Option<u64>,
}

impl Group {
    /// One page a block, one token a state, every token kept.
    pub const PLAIN: Self =
        Self { kind: GroupKind::Tokens, pages_per_block: 1, tokens_per_state: TokensPerState::ONE, window: None };

    /// `window` is the number of last tokens that the group keeps: its block lists may begin late on either side.
    ///
    /// # Errors
    /// [`Error::Layout`] when a block has no page, or the window no token.
    pub fn new(
        kind: GroupKind,
        pages_per_block: u64,
        tokens_per_state: TokensPerState,
        window: Option<u64>,
    ) -> Result<Self> {
        if pages_per_block == 0 {
            return Err(Error::layout(None, "pages_per_block", 0, "at least 1"));
        }
        if window == Some(0) {
            return Err(Error::layout(None, "window", 0, "at least 1 token, or none for full attention"));
        }
        Ok(Self { kind, pages_per_block, tokens_per_state, window })
    }

    /// Tokens or states.
    pub const fn kind(&self) -> GroupKind {
        self.kind
    }

    /// Kernel pages in a block of the scheduler.
    pub const fn pages_per_block(&self) -> u64 {
        self.pages_per_block
    }

    /// Tokens for each index of axis `n`.
    pub const fn tokens_per_state(&self) -> TokensPerState {
        self.tokens_per_state
    }

    /// How many last tokens are kept; `None` keeps all.
    pub const fn window(&self) -> Option<u64> {
        self.window
    }
}
