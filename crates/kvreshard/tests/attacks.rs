//! The hand-made hostile inputs of `attacks/`: each one is refused, with a typed error that says where.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test says so by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use kvreshard::Error;
use kvreshard::check::StockHandshake;
use kvreshard::format::{ElementType, PageFormat, Types};
use kvreshard::layout::RankLayout;
use kvreshard::wire::RegionTags;

/// Runs `attack` on every file of a folder; none may take long enough for a person to notice.
fn replay(folder: &str, least: usize, attack: impl Fn(&str, &[u8]) -> Error) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks").join(folder);
    let mut count = 0;
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = fs::read(&path).unwrap();
        let start = Instant::now();
        let error = attack(&name, &bytes);
        assert!(start.elapsed() < Duration::from_secs(20), "{folder}/{name} took {:?}", start.elapsed());
        let text = error.to_string();
        assert!(!text.is_empty() && text.len() < 4096, "{folder}/{name}: {text}");
        count += 1;
    }
    assert!(count >= least, "{count} files in {folder}");
}

#[test]
fn layouts() {
    replay("layout", 60, |name, bytes| {
        assert!(RegionTags::from_bytes(bytes).is_err(), "{name} is tags");
        let error = RankLayout::from_bytes(bytes).expect_err(name);
        match &error {
            Error::Wire { at, .. } => assert!(!at.is_empty(), "{name}: {error}"),
            Error::Version { found, .. } => assert!(name.starts_with("version-") && *found > 1, "{name}: {error}"),
            Error::Layout { .. }
            | Error::Format { .. }
            | Error::Syntax { .. }
            | Error::Limit { .. }
            | Error::Overflow { .. } => {}
            other => panic!("{name}: {other}"),
        }
        error
    });
}

#[test]
fn handshakes() {
    replay("handshake", 15, |name, bytes| {
        let error = StockHandshake::from_bytes(bytes).expect_err(name);
        assert!(matches!(error, Error::Wire { .. }), "{name}: {error}");
        error
    });
}

#[test]
fn notations() {
    replay("notation", 25, |name, bytes| {
        let text = std::str::from_utf8(bytes).unwrap();
        let all = [("h", 8), ("n", 16), ("d", 128)];
        let extents: BTreeMap<String, u64> = all
            .iter()
            .filter(|(axis, _)| text.contains(axis))
            .map(|(axis, extent)| ((*axis).to_owned(), *extent))
            .collect();
        PageFormat::new(text, &extents, &Types::all(ElementType::U8)).expect_err(name)
    });
}
