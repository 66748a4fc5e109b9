//! What a check found.

use std::fmt;

use crate::error::{Error, Result};

use super::strategy::{Outlook, Strategy};

/// The most findings that a report keeps; the rest are counted.
pub const MAX_FINDINGS: usize = 1_024;

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The pair must not transfer.
    Error,
    /// It may transfer, but something cannot be seen or looks like a mistake.
    Warning,
    /// A difference that is planned through.
    Note,
}

impl Severity {
    /// `error`, `warning` or `note`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One thing that a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How much it weighs.
    pub severity: Severity,
    /// What it is, with layer, field, both values and a remedy as data. For a finding of [`Severity::Error`] this is what planning
    /// the pair raises.
    pub cause: Error,
    /// The row of the table of silent mismatches (docs/handshake.md) that it is, in an [`audit`](super::audit).
    pub row: Option<&'static str>,
}

impl Finding {
    /// The layer concerned.
    pub fn layer(&self) -> Option<&str> {
        match &self.cause {
            Error::Layout { layer, .. }
            | Error::Incompatible { layer, .. }
            | Error::Untagged { layer, .. }
            | Error::Unproven { layer, .. } => layer.as_deref(),
            Error::Missing { layer, .. } => Some(layer),
            _ => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row {
            Some(row) => write!(f, "{} (row {row}): {}", self.severity, self.cause),
            None => write!(f, "{}: {}", self.severity, self.cause),
        }
    }
}

/// Everything that a check found, and what could be done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    findings: Vec<Finding>,
    omitted: u64,
    strategies: Vec<Outlook>,
}

impl Report {
    /// The findings, heaviest first, in the order of the layers.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// How many findings were left out because there were more than [`MAX_FINDINGS`].
    pub const fn omitted(&self) -> u64 {
        self.omitted
    }

    /// What is possible, most direct first; [`Strategy::Refuse`] alone when there is an error.
    pub fn strategies(&self) -> &[Outlook] {
        &self.strategies
    }

    /// The strategy to take: the one that the caller insists on, or the one that makes sense.
    pub fn advice(&self) -> Strategy {
        self.strategies.iter().find(|outlook| outlook.advised).map_or(Strategy::Refuse, |outlook| outlook.strategy)
    }

    /// The outlook of one strategy, if it is possible.
    pub fn outlook(&self, strategy: Strategy) -> Option<&Outlook> {
        self.strategies.iter().find(|outlook| outlook.strategy == strategy)
    }

    /// The findings of one weight.
    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.severity == severity)
    }

    /// Whether the pair may transfer.
    pub fn is_accepted(&self) -> bool {
        self.of(Severity::Error).next().is_none()
    }

    /// Nothing, or the first error.
    ///
    /// # Errors
    /// The cause of the first finding of [`Severity::Error`].
    pub fn raise(&self) -> Result<()> {
        self.of(Severity::Error).next().map_or(Ok(()), |finding| Err(finding.cause.clone()))
    }

    pub(super) fn add(&mut self, severity: Severity, cause: Error) {
        self.add_row(severity, cause, None);
    }

    pub(super) fn add_row(&mut self, severity: Severity, cause: Error, row: Option<&'static str>) {
        let full = self.findings.len() >= MAX_FINDINGS;
        // An error is never crowded out by notes, which stand last.
        if full && self.findings.last().is_some_and(|last| last.severity <= severity) {
            self.omitted = self.omitted.saturating_add(1);
            return;
        }
        let finding = Finding { severity, cause, row };
        if self.findings.contains(&finding) {
            return;
        }
        if full {
            self.omitted = self.omitted.saturating_add(1);
            self.findings.pop();
        }
        // Kept in order of weight; equal weights stay in the order of their finding.
        let at = self.findings.partition_point(|known| known.severity <= severity);
        self.findings.insert(at, finding);
    }

    pub(super) fn set_strategies(&mut self, strategies: Vec<Outlook>) {
        self.strategies = strategies;
    }

    /// The same findings, but for layers that one rank lacks.
    pub(super) fn without_missing(mut self) -> Self {
        self.findings.retain(|finding| !matches!(finding.cause, Error::Missing { .. }));
        self
    }

    /// Takes over what another report found.
    pub(super) fn merge(&mut self, other: Self) {
        for finding in other.findings {
            self.add_row(finding.severity, finding.cause, finding.row);
        }
        self.omitted = self.omitted.saturating_add(other.omitted);
    }
}

impl fmt::Display for Report {
    /// One line a finding, layers that say the same in one line; then the strategies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups: Vec<(&Finding, usize)> = Vec::new();
        for finding in &self.findings {
            let same = |known: &(&Finding, usize)| alike(known.0, finding);
            match groups.iter_mut().find(|known| same(known)) {
                Some((_, more)) => *more = more.saturating_add(1),
                None => groups.push((finding, 0)),
            }
        }
        for (finding, more) in groups {
            let layers = if more == 0 { String::new() } else { format!(" (and {more} more layers)") };
            writeln!(f, "{finding}{layers}")?;
        }
        if self.omitted > 0 {
            writeln!(f, "and {} more findings", self.omitted)?;
        }
        for outlook in &self.strategies {
            writeln!(f, "{outlook}")?;
        }
        Ok(())
    }
}

/// Whether two findings differ in nothing but the layer.
fn alike(one: &Finding, other: &Finding) -> bool {
    let bare = |finding: &Finding| {
        let mut cause = finding.cause.clone();
        match &mut cause {
            Error::Layout { layer, .. } | Error::Incompatible { layer, .. } | Error::Untagged { layer, .. } => {
                *layer = layer.as_ref().map(|_| String::new());
            }
            Error::Missing { layer, .. } => layer.clear(),
            _ => {}
        }
        cause
    };
    one.severity == other.severity && one.row == other.row && one.layer().is_some() && bare(one) == bare(other)
}
