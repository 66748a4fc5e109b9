//! What a message lists once and names by number: templates of layer names, and formats. Each layer must get its own back.

use super::common::format;
use kvreshard::Error;
use kvreshard::layout::{Group, Layer, MemoryKind, Position, RankLayout, RankParts, Region, Segment, Shares};
use kvreshard::wire::MAX_FORMATS;

/// A rank with a layer for each name, whose heads are of so many elements.
fn rank(layers: &[(String, u64)]) -> RankLayout {
    let layer = |(name, size): &(String, u64)| {
        let page = format("n k[d]", &[("n", 2), ("d", *size)], "u8");
        let stride = page.page_bytes();
        let segment = Segment::new(0, page, 0, 1, stride, Shares::default()).unwrap();
        Layer::new(name.as_str(), vec![segment], 0, []).unwrap()
    };
    RankLayout::new(RankParts {
        engine: "e".to_owned(),
        generation: 0,
        position: Position::ALONE,
        regions: vec![Region::new(4096, 1 << 20, 0, MemoryKind::Dram).unwrap()],
        groups: vec![Group::PLAIN],
        layers: layers.iter().map(layer).collect(),
    })
    .unwrap()
}

fn named(names: &[&str]) -> RankLayout {
    rank(&names.iter().map(|name| ((*name).to_owned(), 4)).collect::<Vec<_>>())
}

fn holds(message: &[u8], text: &str) -> bool {
    message.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn names_of_several_templates_come_back() {
    let layout = named(&["attn.0", "attn.1", "mlp.1", "attn.2", "mlp.0.x.7", "lone", "mlp.2"]);
    assert_eq!(RankLayout::from_bytes(&layout.to_bytes().unwrap()).unwrap(), layout);
}

#[test]
fn a_name_of_as_many_numbers_as_may_be_is_a_template_and_one_of_more_is_a_text() {
    let numbers = |count: u64| (0..count).map(|number| number.to_string()).collect::<Vec<_>>().join(".");
    for (count, shortened) in [(31, true), (32, true), (33, false)] {
        let layout = named(&[&numbers(count), "other.1"]);
        let message = layout.to_bytes().unwrap();
        assert_eq!(!holds(&message, &numbers(count)), shortened, "{count}");
        assert_eq!(RankLayout::from_bytes(&message).unwrap(), layout, "{count}");
    }
}

#[test]
fn numbers_that_a_template_cannot_give_back_stay_texts() {
    for name in ["layers.007", "layers.99999999999999999999", "layers.#.1"] {
        let layout = named(&[name, "layers.1"]);
        let message = layout.to_bytes().unwrap();
        assert!(holds(&message, name), "{name}");
        assert_eq!(RankLayout::from_bytes(&message).unwrap(), layout, "{name}");
    }
}

#[test]
fn formats_of_one_notation_are_told_apart_by_their_extents() {
    let layers: Vec<(String, u64)> = (0..4).map(|number| (format!("layers.{number}"), 4 << (number % 2))).collect();
    let layout = rank(&layers);
    let message = layout.to_bytes().unwrap();
    assert_eq!(RankLayout::from_bytes(&message).unwrap(), layout);
    // Two formats, each listed once.
    assert_eq!(message.windows(8).filter(|window| window == b"notation").count(), 2);
}

#[test]
fn as_many_formats_as_a_message_may_have_are_written_and_not_one_more() {
    let of = |count: usize| {
        let layers = (1..=count).map(|size| (format!("layers.{size}"), u64::try_from(size).unwrap()));
        rank(&layers.collect::<Vec<_>>())
    };
    let most = of(MAX_FORMATS);
    assert_eq!(RankLayout::from_bytes(&most.to_bytes().unwrap()).unwrap(), most);
    let error = of(MAX_FORMATS + 1).to_bytes().unwrap_err();
    assert!(matches!(error, Error::Limit { found: 1025, limit: 1024, .. }), "{error}");
}

#[test]
fn formats_of_equal_bytes_keep_their_own_notation() {
    let layer = |number: usize, notation: &str| {
        let page = format(notation, &[("n", 2), ("d", 4)], "u8");
        let segment = Segment::new(0, page, 0, 1, 8, Shares::default()).unwrap();
        Layer::new(format!("layers.{number}"), vec![segment], 0, []).unwrap()
    };
    let notations = ["n k[d]", "n k[d/2 d%2]", "n k[d]", "n (k[d])"];
    let mut parts = named(&["x"]).parts().clone();
    parts.layers = notations.iter().enumerate().map(|(number, notation)| layer(number, notation)).collect();
    let read = RankLayout::from_bytes(&RankLayout::new(parts).unwrap().to_bytes().unwrap()).unwrap();
    let found = read.layers().iter().map(|layer| layer.segments().first().unwrap().format().notation().to_owned());
    assert_eq!(found.collect::<Vec<_>>(), notations);
}
