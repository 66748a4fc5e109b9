//! Frames of the ring protocol: what is written is read, and nothing else is.

use kvreshard::Error;
use kvreshard::ring::message::{MAX_FRAME_BYTES, PREFIX, WireRequest};
use kvreshard::ring::{Chunks, Flow, Frame, Message, Reason, RequestName, Role, Session, SlotUse, Ticket};
use proptest::prelude::*;

fn slot() -> impl Strategy<Value = SlotUse> {
    (any::<u32>(), any::<u64>()).prop_map(|(slot, generation)| SlotUse { slot, generation })
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Receiver), Just(Role::Sender)]
}

fn reason() -> impl Strategy<Value = Reason> {
    prop::sample::select(vec![
        Reason::Cancelled,
        Reason::Deadline,
        Reason::LeaseEnded,
        Reason::PeerLost,
        Reason::Transfer,
        Reason::Kernel,
        Reason::Mismatch,
        Reason::Registered,
    ])
}

fn want() -> impl Strategy<Value = Message> {
    let flow = prop_oneof![Just(Flow::Push), Just(Flow::Pull)];
    ("\\PC{1,60}", 1_u64.., 1_u64..1 << 20, any::<u64>(), any::<u64>(), flow).prop_map(
        |(name, bytes, count, ticket, floor, flow)| {
            let chunks = Chunks::new(bytes, bytes.div_ceil(count)).unwrap();
            let request = WireRequest::new(&RequestName::new(&name).unwrap(), chunks);
            Message::Want { ticket: Ticket(ticket), floor: Ticket(floor), request, flow }
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let ticket = || any::<u64>().prop_map(Ticket);
    prop_oneof![
        want(),
        (slot(), any::<u64>()).prop_map(|(at, bytes)| Message::Grant { at, bytes }),
        (slot(), ticket(), any::<u32>()).prop_map(|(at, ticket, sequence)| Message::Shipped { at, ticket, sequence }),
        slot().prop_map(|at| Message::Consumed { at }),
        slot().prop_map(|at| Message::Returned { at }),
        (ticket(), ticket(), role(), any::<bool>(), reason())
            .prop_map(|(ticket, floor, from, answer, reason)| Message::Abort { ticket, floor, from, answer, reason }),
    ]
}

fn frame() -> impl Strategy<Value = Frame> {
    (any::<u64>(), any::<u64>(), message())
        .prop_map(|(receiver, sender, message)| Frame { session: Session { receiver, sender }, message })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_frame_is_read_as_it_was_written(frame in frame()) {
        let bytes = frame.to_bytes().unwrap();
        prop_assert!(Frame::is_frame(&bytes) && bytes.len() <= MAX_FRAME_BYTES);
        prop_assert_eq!(Frame::from_bytes(&bytes).unwrap(), frame);
    }

    #[test]
    fn a_cut_or_longer_frame_is_refused(frame in frame(), cut in any::<prop::sample::Index>()) {
        let mut bytes = frame.to_bytes().unwrap();
        prop_assert!(Frame::from_bytes(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        let refused = Frame::from_bytes(&bytes);
        prop_assert!(matches!(refused, Err(Error::Wire { .. } | Error::Limit { .. })), "{:?}", refused);
    }

    #[test]
    fn hostile_bytes_are_an_error_or_a_frame(frame in frame(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = frame.to_bytes().unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(read) = Frame::from_bytes(&bytes) {
            // Whatever it says now, it is a frame that could have been written.
            prop_assert_eq!(Frame::from_bytes(&read.to_bytes().unwrap()).unwrap(), read);
        }
    }

    #[test]
    fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(Frame::from_bytes(&noise).is_err());
        let _ = Frame::from_bytes(&[PREFIX, &[0x92, 1], &noise].concat());
    }
}

#[test]
fn bounds_hold() {
    let long = "x".repeat(256);
    let request = WireRequest::new(&RequestName::new(&long).unwrap(), Chunks::new(u64::MAX, u64::MAX).unwrap());
    let message = Message::Want { ticket: Ticket(u64::MAX), floor: Ticket(u64::MAX), request, flow: Flow::Push };
    let frame = Frame { session: Session { receiver: u64::MAX, sender: u64::MAX }, message };
    assert_eq!(Frame::from_bytes(&frame.to_bytes().unwrap()).unwrap(), frame);
    assert!(RequestName::new(&"x".repeat(257)).is_err() && RequestName::new("").is_err());
    let too_many = Chunks::new((1 << 20) + 1, 1).unwrap_err();
    assert!(matches!(too_many, Error::Limit { limit: 1_048_576, .. }), "{too_many}");
    assert!(Chunks::new(0, 1).is_err() && Chunks::new(1, 0).is_err());
    assert_eq!(Chunks::new(10, 4).unwrap().span(2).unwrap(), (8, 2));
    assert!(Chunks::new(10, 4).unwrap().span(3).is_err());
}

#[test]
fn another_version_is_named() {
    let message = Message::Consumed { at: SlotUse { slot: 0, generation: 1 } };
    let mut bytes = Frame { session: Session { receiver: 1, sender: 2 }, message }.to_bytes().unwrap();
    bytes[PREFIX.len() + 1] = 2;
    assert_eq!(Frame::from_bytes(&bytes).unwrap_err(), Error::Version { found: 2, supported: 1 });
    bytes[PREFIX.len() + 1] = 0;
    assert!(matches!(Frame::from_bytes(&bytes).unwrap_err(), Error::Wire { .. }));
    let error = Frame::from_bytes(b"kvreshard\x00other").unwrap_err();
    assert!(error.to_string().contains("not a frame"), "{error}");
}

#[test]
fn a_want_of_too_many_chunks_is_refused_when_read() {
    let request = WireRequest::new(&RequestName::new("r").unwrap(), Chunks::new(1 << 20, 1).unwrap());
    let want = Message::Want { ticket: Ticket(0), floor: Ticket(0), request, flow: Flow::Pull };
    let bytes = Frame { session: Session { receiver: 1, sender: 2 }, message: want }.to_bytes().unwrap();
    let at = bytes.windows(5).position(|five| five == [0xce, 0x00, 0x10, 0x00, 0x00]).unwrap();
    let mut more = bytes.clone();
    more[at + 4] = 1;
    assert!(Frame::from_bytes(&bytes).is_ok());
    assert!(matches!(Frame::from_bytes(&more).unwrap_err(), Error::Limit { .. }));
}

/// Version 1 is frozen: these bytes are read as these frames, and written so, for as long as there is a version 1.
#[test]
fn frames_of_version_1_are_these_bytes() {
    let at = SlotUse { slot: 3, generation: 1 << 40 };
    let request = WireRequest::new(&RequestName::new("18a").unwrap(), Chunks::new(10_000, 4096).unwrap());
    let (ticket, floor) = (Ticket(300), Ticket(7));
    let session = Session { receiver: 5, sender: 1 << 33 };
    // The prefix, version 1, and the session.
    let head = "6b76726573686172642d72696e67009201929205cf0000000200000000";
    let golden = [
        (
            Message::Want { ticket, floor, request: request.clone(), flow: Flow::Push },
            "81a477616e7494cd012c0793a3313861cd2710cd1000a450757368",
        ),
        (
            Message::Want { ticket, floor, request, flow: Flow::Pull },
            "81a477616e7494cd012c0793a3313861cd2710cd1000a450756c6c",
        ),
        (Message::Grant { at, bytes: 4096 }, "81a56772616e74929203cf0000010000000000cd1000"),
        (Message::Shipped { at, ticket, sequence: 2 }, "81a773686970706564939203cf0000010000000000cd012c02"),
        (Message::Consumed { at }, "81a8636f6e73756d6564919203cf0000010000000000"),
        (Message::Returned { at }, "81a872657475726e6564919203cf0000010000000000"),
        (
            Message::Abort { ticket, floor, from: Role::Sender, answer: false, reason: Reason::LeaseEnded },
            "81a561626f727495cd012c07a653656e646572c2aa4c65617365456e646564",
        ),
        (
            Message::Abort { ticket, floor, from: Role::Receiver, answer: true, reason: Reason::Registered },
            "81a561626f727495cd012c07a85265636569766572c3aa52656769737465726564",
        ),
    ];
    for (message, expected) in golden {
        let frame = Frame { session, message };
        let bytes = frame.to_bytes().unwrap();
        let written: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(written, format!("{head}{expected}"), "{frame:?}");
        assert_eq!(Frame::from_bytes(&bytes).unwrap(), frame);
    }
}
