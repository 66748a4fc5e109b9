//! Notations by what they hold, so that two of one cast mean the same elements.

/// The components of a layer.
#[derive(Debug, Clone, Copy)]
pub enum Cast {
    /// K and V of sharded heads.
    Heads,
    /// K and V without heads.
    Whole,
    /// One row a token, as MLA has.
    Row,
    /// K and V that have nothing inside a head and a token.
    Bare,
    /// With loops that have no name.
    Nameless,
    /// Whole states.
    State,
}

impl Cast {
    /// One for every value; most have heads.
    pub fn of(value: u8, state: bool) -> Self {
        match value {
            _ if state => Self::State,
            0..=159 => Self::Heads,
            160..=191 => Self::Whole,
            192..=223 => Self::Row,
            224..=239 => Self::Nameless,
            _ => Self::Bare,
        }
    }

    /// Whether heads are shared out.
    pub fn sharded(self) -> bool {
        matches!(self, Self::Heads | Self::Bare | Self::Nameless | Self::State)
    }

    /// The notation of a plane a head, where `value` asks for planes and the cast has them.
    pub fn planes(self, value: u8) -> Option<&'static str> {
        match (self, value) {
            (Self::Heads, 224..=239) => Some("n k[d] v[d]"),
            (Self::Heads, 240..) => Some("k[n/2 d n%2] v[d n]"),
            (Self::State, 224..) => Some("x[d]"),
            _ => None,
        }
    }

    /// The segments of a layer, each with its notation.
    pub fn written(self, value: u8) -> &'static [&'static str] {
        const HEADS: &[&[&str]] = &[
            &["h n k[d] v[d]"],
            &["n h k[d] v[d]"],
            &["k[h n d] v[h n d]"],
            &["k[n h d] v[n h d]"],
            &["k[n h d]", "v[n h d]"],
            &["k[h n d]", "v[n h d]"],
            &["k[h d/2 n d%2] v[h n/2 d n%2]"],
            &["k[h d/2 n d%2] v[h d n]"],
            &["k[n/4 h d/2 n%4 d%2] v[n/4 h n%4/2 d n%2]"],
            &["h k[n/4 d/2 n%4 d%2] pad[3] v[d/2 n/2 d%2 n%2]"],
            &["n/2 (h n%2 k[d] pad[5] v[d])"],
            &["h (n k[d]) v[n/2 d n%2]"],
            &["d n h k[] v[]"],
            &["n d k[h] v[h]"],
        ];
        const WHOLE: &[&[&str]] = &[
            &["n k[d] v[d]"],
            &["v[d n] pad[7] k[n d]"],
            &["k[n d]", "pad[2] v[n/2 d n%2]"],
            &["d/2 k[n d%2] v[d%2 n]"],
        ];
        const ROW: &[&[&str]] = &[&["k[n d]"], &["k[d n]"], &["n/4 d/2 n%4 k[d%2]"], &["n pad[1] k[d]"]];
        const BARE: &[&[&str]] = &[&["k[h n] v[h n]"], &["n h k[] v[]"], &["h n (k[] (v[]))"], &["h k[n] v[n]"]];
        const NAMELESS: &[&[&str]] =
            &[&["2 k[h n d] v[h n]"], &["k[h n d 2] v[n h]"], &["h (n 2 k[d]) v[n]"], &["k[h 2 d n] pad[1] v[h n]"]];
        const STATE: &[&[&str]] = &[&["x[h d]"], &["x[d h]"], &["h pad[3] x[d]"], &["d/2 h x[d%2] pad[8]"]];
        let all = match self {
            Self::Heads => HEADS,
            Self::Whole => WHOLE,
            Self::Row => ROW,
            Self::Bare => BARE,
            Self::Nameless => NAMELESS,
            Self::State => STATE,
        };
        all[usize::from(value) % all.len()]
    }
}
