//! Any text as a notation, with any extents: a typed error, or a format that its canonical text describes as well.
#![no_main]

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use kvreshard::Error;
use kvreshard::format::{ElementType, PageFormat, Types};
use kvreshard_fuzz::{Stage, pulse};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    notation: String,
    extents: Vec<(String, u64)>,
    /// For `h`, `n` and `d`, which seeds use.
    usual: (u16, u16, u16),
    dtype: u8,
}

fuzz_target!(|data: &[u8]| {
    pulse(Stage::Begun);
    // Bytes that are missing read as 0, so that short inputs are inputs too.
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let dtype = ElementType::ALL[usize::from(input.dtype) % ElementType::ALL.len()];
    let mut extents: BTreeMap<String, u64> = input.extents.into_iter().take(32).collect();
    for (axis, extent) in [("h", input.usual.0), ("n", input.usual.1), ("d", input.usual.2)] {
        if input.notation.contains(axis) {
            extents.entry(axis.to_owned()).or_insert(u64::from(extent));
        }
    }
    let Ok(format) = PageFormat::new(&input.notation, &extents, &Types::all(dtype)) else { return };
    pulse(Stage::Valid);
    assert!(format.difference(&format).is_empty());
    // Axes of one index are not in the canonical text.
    let used: BTreeMap<String, u64> = format
        .components()
        .iter()
        .flat_map(|component| component.digits().iter().map(|digit| digit.axis.to_string()))
        .filter(|axis| !axis.is_empty())
        .map(|axis| (axis.clone(), extents[&axis]))
        .collect();
    let canonical = PageFormat::new(format.canonical(), &used, &Types::all(dtype)).unwrap();
    assert!(canonical.same_bytes_as(&format), "{} and {}", format.notation(), format.canonical());
    assert_eq!(canonical.fingerprint(), format.fingerprint());
    for component in format.components() {
        let bytes = component.dtype().bytes();
        let last: u64 = component.digits().iter().map(|digit| (digit.extent - 1) * digit.stride).sum();
        assert!(component.base() + last + bytes <= format.page_bytes());
        let count = component.digits().iter().fold(1_u64, |count, digit| count.saturating_mul(digit.extent));
        if count <= 4096 {
            // Offsets are signed, as numpy has them: a page of 2^63 bytes and more cannot be listed.
            let listed = component.offsets();
            if format.page_bytes() > 1 << 63 && matches!(listed, Err(Error::Overflow { .. })) {
                continue;
            }
            let mut offsets = listed.unwrap();
            assert_eq!(offsets.len() as u64, count);
            offsets.sort_unstable();
            offsets.dedup();
            assert_eq!(offsets.len() as u64, count, "two elements at one offset");
        }
    }
});
