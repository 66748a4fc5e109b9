//! Text to a flat sequence of events; every refusal says where.
//!
//! ```text
//! body = loop* item+
//! item = name "[" loop* "]" | "(" body ")"
//! loop = axis (("/" | "%") int)* | int
//! ```
//!
//! A notation may come from a peer, so it is bounded before anything is allocated for it and read without recursion.

use crate::error::{Error, Result};
use crate::name::{Name, continues_name, starts_name};
use crate::units::wide;

/// The most bytes of a notation.
pub const MAX_NOTATION_BYTES: usize = 4096;
/// How deep parentheses may nest.
pub const MAX_NESTING: usize = 16;
/// The most loops on the path to one component.
pub const MAX_LOOPS: usize = 32;
/// The most components of a format; `pad` is not counted.
pub const MAX_COMPONENTS: usize = 64;

/// The reserved item name for bytes that nobody reads.
pub(super) const PAD: &str = "pad";

/// One step through the notation. The whole of it is one [`Event::Open`] .. [`Event::Close`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A body begins, with the loops that apply to all its items.
    Open(Vec<Loop>),
    /// A component, or `pad` when it has no name.
    Item {
        /// The component's name.
        name: Option<Name>,
        /// Its own loops.
        loops: Vec<Loop>,
        /// Byte offset of the name.
        at: usize,
    },
    /// The body ends.
    Close,
}

/// A loop as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loop {
    /// What it runs over.
    pub(super) over: Over,
    /// Byte offset of its first character.
    pub(super) at: usize,
}

/// What a loop runs over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Over {
    /// A bare number.
    Count(u64),
    /// An axis, or the digit that the cuts leave of it.
    Axis(Name, Vec<Cut>),
}

/// One `/` or `%` of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Which part is kept.
    pub(super) keep: Keep,
    /// The divisor, at least 1.
    pub(super) by: u64,
    /// Byte offset of the operator.
    pub(super) at: usize,
}

/// The part of an axis that a cut keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// `/`: the quotient.
    Upper,
    /// `%`: the rest.
    Lower,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a str),
    Number(u64),
    Sign(u8),
    End,
}

impl Token<'_> {
    fn describe(self) -> String {
        match self {
            Self::Name(name) => format!("`{name}`"),
            Self::Number(number) => format!("`{number}`"),
            Self::Sign(sign) => format!("`{}`", char::from(sign)),
            Self::End => "the end".to_owned(),
        }
    }
}

fn syntax(at: usize, expected: &str, found: impl Into<String>) -> Error {
    Error::Syntax { at, expected: expected.to_owned(), found: found.into() }
}

/// Splits `text` into tokens with their byte offsets; the last one is [`Token::End`].
fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>> {
    if text.len() > MAX_NOTATION_BYTES {
        return Err(Error::limit("bytes of a notation", wide(text.len()), wide(MAX_NOTATION_BYTES)));
    }
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let at = text.len().saturating_sub(rest.len());
        let (token, after) = match first {
            _ if first.is_ascii_whitespace() => {
                rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
                continue;
            }
            b'[' | b']' | b'(' | b')' | b'/' | b'%' => (Token::Sign(first), rest.split_at(1).1),
            b'0'..=b'9' => {
                let (digits, after) = split_while(rest, |byte| byte.is_ascii_digit());
                if after.bytes().next().is_some_and(starts_name) {
                    let (name, _) = split_while(after, continues_name);
                    return Err(syntax(at, "a number or a name", format!("`{digits}{name}`")));
                }
                let number = digits.parse().map_err(|_| Error::overflow(format!("the number {digits}")))?;
                (Token::Number(number), after)
            }
            _ if starts_name(first) => {
                let (name, after) = split_while(rest, continues_name);
                (Token::Name(name), after)
            }
            _ => {
                let character = rest.chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
                return Err(syntax(at, "a name, a number or one of `[ ] ( ) / %`", format!("{character:?}")));
            }
        };
        found.push((at, token));
        rest = after;
    }
    found.push((text.len(), Token::End));
    Ok(found)
}

fn split_while(text: &str, belongs: impl Fn(u8) -> bool) -> (&str, &str) {
    let length = text.bytes().position(|byte| !belongs(byte)).unwrap_or(text.len());
    text.split_at_checked(length).unwrap_or((text, ""))
}

/// `text` with the white space that this crate would write: nothing inside brackets' edges or around `/` and `%`, one space
/// elsewhere.
pub(super) fn normalise_space(text: &str) -> Result<String> {
    let mut written = String::with_capacity(text.len());
    let mut before = Token::Sign(b'(');
    for (_, token) in tokens(text)? {
        let glued = matches!(before, Token::Sign(b'(' | b'[' | b'/' | b'%'))
            || matches!(token, Token::Sign(b')' | b']' | b'[' | b'/' | b'%') | Token::End);
        if !glued {
            written.push(' ');
        }
        match token {
            Token::Name(name) => written.push_str(name),
            Token::Number(number) => written.push_str(&number.to_string()),
            Token::Sign(sign) => written.push(char::from(sign)),
            Token::End => {}
        }
        before = token;
    }
    Ok(written)
}

/// Reads a notation.
///
/// # Errors
/// [`Error::Syntax`] or [`Error::Format`] with the position, [`Error::Limit`] when a bound of this module is passed.
pub(super) fn parse(text: &str) -> Result<Vec<Event>> {
    let tokens = tokens(text)?;
    let mut reader =
        Reader { left: &tokens, events: vec![Event::Open(Vec::new())], open: vec![0], components: Vec::new() };
    while reader.step()? {}
    Ok(reader.events)
}

const ITEM: &str = "a loop, a component or `(`";
const NEXT_ITEM: &str = "a component, `(` or `)`";
const LAST_ITEM: &str = "a component, `(` or the end";

struct Reader<'a> {
    left: &'a [(usize, Token<'a>)],
    events: Vec<Event>,
    /// For every open body, the loops on the path down to its items.
    open: Vec<usize>,
    components: Vec<Name>,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> (usize, Token<'a>) {
        self.left.first().copied().unwrap_or((0, Token::End))
    }

    fn advance(&mut self) -> (usize, Token<'a>) {
        let next = self.peek();
        self.left = self.left.split_first().map_or(&[], |(_, left)| left);
        next
    }

    /// What may stand where the reader is; a body without an item yet still takes loops, and cannot end.
    fn expected(&self) -> &'static str {
        match (self.events.last(), self.open.len()) {
            (Some(Event::Open(_)), _) => ITEM,
            (_, 1) => LAST_ITEM,
            _ => NEXT_ITEM,
        }
    }

    /// Reads one loop, one item or one parenthesis; false at the end.
    fn step(&mut self) -> Result<bool> {
        let expected = self.expected();
        let (at, token) = self.advance();
        let empty = matches!(self.events.last(), Some(Event::Open(_)));
        match (token, self.peek().1) {
            (Token::Name(PAD), Token::Sign(b'[')) => {
                let loops = self.bracket()?;
                self.events.push(Event::Item { name: None, loops, at });
            }
            (Token::Name(name), Token::Sign(b'[')) => {
                let name = Name::new(name)?;
                if self.components.contains(&name) {
                    return Err(misfit(&name, "is written twice; a component appears once", at));
                }
                if self.components.len() == MAX_COMPONENTS {
                    return Err(Error::limit(
                        "components of a page format",
                        wide(MAX_COMPONENTS.saturating_add(1)),
                        wide(MAX_COMPONENTS),
                    ));
                }
                self.components.push(name.clone());
                let loops = self.bracket()?;
                self.events.push(Event::Item { name: Some(name), loops, at });
            }
            (Token::Name(_) | Token::Number(_), _) if empty => {
                let outer = self.open.last_mut().map_or(0, |outer| {
                    *outer = outer.saturating_add(1);
                    *outer
                });
                within_loop_limit(outer)?;
                let next = self.read_loop(at, token)?;
                if let Some(Event::Open(loops)) = self.events.last_mut() {
                    loops.push(next);
                }
            }
            (Token::Name(_) | Token::Number(_), _) => {
                let found = format!("the loop {}; loops come before the items they repeat", token.describe());
                return Err(syntax(at, expected, found));
            }
            (Token::Sign(b'('), _) => {
                if self.open.len() > MAX_NESTING {
                    return Err(Error::limit("nested parentheses", wide(self.open.len()), wide(MAX_NESTING)));
                }
                self.open.push(self.open.last().copied().unwrap_or_default());
                self.events.push(Event::Open(Vec::new()));
            }
            (Token::Sign(b')'), _) if !empty && self.open.len() > 1 => {
                self.open.pop();
                self.events.push(Event::Close);
            }
            (Token::End, _) if !empty && self.open.len() == 1 => {
                self.events.push(Event::Close);
                return Ok(false);
            }
            _ => return Err(syntax(at, expected, token.describe())),
        }
        Ok(true)
    }

    /// The loops between `[` and `]`.
    fn bracket(&mut self) -> Result<Vec<Loop>> {
        self.advance();
        let mut outer = self.open.last().copied().unwrap_or_default();
        let mut loops = Vec::new();
        loop {
            let (at, token) = self.advance();
            match token {
                Token::Sign(b']') => return Ok(loops),
                Token::Name(_) | Token::Number(_) => {
                    outer = outer.saturating_add(1);
                    within_loop_limit(outer)?;
                    loops.push(self.read_loop(at, token)?);
                }
                _ => return Err(syntax(at, "a loop or `]`", token.describe())),
            }
        }
    }

    /// The loop that begins with `token`: a number, or an axis and its cuts.
    fn read_loop(&mut self, at: usize, token: Token<'a>) -> Result<Loop> {
        let name = match token {
            Token::Name(PAD) => {
                return Err(syntax(at, "a loop or a component", "`pad`, which needs brackets: `pad[..]`"));
            }
            Token::Name(name) => Name::new(name)?,
            Token::Number(0) => return Err(syntax(at, "a loop of at least 1", "`0`")),
            Token::Number(count) => return Ok(Loop { over: Over::Count(count), at }),
            Token::Sign(_) | Token::End => return Err(syntax(at, "a loop", token.describe())),
        };
        let mut cuts = Vec::new();
        while let (at, Token::Sign(sign @ (b'/' | b'%'))) = self.peek() {
            self.advance();
            let keep = if sign == b'/' { Keep::Upper } else { Keep::Lower };
            match self.advance() {
                (at, Token::Number(0)) => return Err(syntax(at, "a divisor of at least 1", "`0`")),
                (_, Token::Number(by)) => cuts.push(Cut { keep, by, at }),
                (at, other) => return Err(syntax(at, "a divisor", other.describe())),
            }
        }
        Ok(Loop { over: Over::Axis(name, cuts), at })
    }
}

fn within_loop_limit(loops: usize) -> Result<()> {
    if loops > MAX_LOOPS {
        return Err(Error::limit("loops on the path to one component", wide(loops), wide(MAX_LOOPS)));
    }
    Ok(())
}

/// [`Error::Format`] about a name of the notation, with its position.
pub(super) fn misfit(name: &Name, problem: impl Into<String>, at: usize) -> Error {
    Error::Format { subject: name.to_string(), problem: problem.into(), at: Some(at) }
}
