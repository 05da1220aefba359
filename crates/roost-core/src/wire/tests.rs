//! The decoder against everything a peer may send.

use super::*;
use proptest::prelude::*;

fn any_header() -> impl Strategy<Value = Header> {
    (1u8..=12, any::<[u8; 2]>(), 0u8..=4, any::<[u64; 7]>(), any::<[u32; 3]>()).prop_map(
        |(kind, flags, status, longs, shorts)| Header {
            kind: Kind::from_byte(kind).unwrap_or_default(),
            flags: flags[0],
            status: Status::from_byte(status).unwrap_or_default(),
            dest: ProcId { mesh: longs[0], rank: shorts[0] },
            src: ProcId { mesh: longs[1], rank: shorts[1] },
            dest_box: longs[2],
            src_box: longs[3],
            call: longs[4],
            index: shorts[2],
            trace: longs[5],
            arg: longs[6],
        },
    )
}

fn any_entries() -> impl Strategy<Value = Vec<Entry>> {
    proptest::collection::vec(
        prop_oneof![
            (0u64..200).prop_map(Entry::Inline),
            (1u64.., any::<u64>(), any::<u64>()).prop_map(|(slab, offset, len)| Entry::Block {
                slab,
                offset,
                len
            }),
        ],
        0..6,
    )
}

fn frame(header: &Header, entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes, header, entries);
    for entry in entries {
        if let Entry::Inline(len) = entry {
            bytes.extend((0..*len).map(|byte| byte as u8));
        }
    }
    bytes
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(header in any_header(), entries in any_entries()) {
        let bytes = frame(&header, &entries);
        match decode(&bytes) {
            Ok(Progress::Frame(got)) => {
                prop_assert_eq!(got.header, header);
                prop_assert_eq!(got.entries, entries);
                prop_assert_eq!(got.end, bytes.len());
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_truncated_frame_asks_for_more_and_never_for_less(
        header in any_header(), entries in any_entries(), cut in 0.0f64..1.0,
    ) {
        let bytes = frame(&header, &entries);
        let shown = (bytes.len() as f64 * cut) as usize;
        match decode(&bytes[..shown]) {
            Ok(Progress::Need(need)) => prop_assert!(need > shown && need <= bytes.len()),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn garbage_is_an_error_or_a_bounded_wish(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(Progress::Need(need)) = decode(&bytes) {
            prop_assert!(need as u64 <= MAX_INLINE_BYTES + (HEADER_BYTES + MAX_PARTS * ENTRY_BYTES) as u64);
        }
    }

    #[test]
    fn a_flipped_byte_never_panics(header in any_header(), entries in any_entries(), at in any::<prop::sample::Index>(), value in any::<u8>()) {
        let mut bytes = frame(&header, &entries);
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = decode(&bytes);
    }
}

#[test]
fn a_frame_of_four_gigabytes_is_refused_at_its_header() {
    let mut bytes = frame(&Header::default(), &[]);
    bytes[8..16].copy_from_slice(&(4u64 << 30).to_le_bytes());
    assert!(matches!(decode(&bytes), Err(WireError::Length(_, _))));
}

/// Each file is named after what the decoder has to make of it. New finds are added, never removed.
#[test]
fn the_corpus_is_judged_as_before() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let bytes = std::fs::read(&path).expect("its bytes");
        let judged = match decode(&bytes) {
            Ok(Progress::Frame(_)) => "whole",
            Ok(Progress::Need(_)) => "incomplete",
            Err(_) => "refused",
        };
        assert!(name.starts_with(judged), "{name} is {judged}");
        for end in 0..bytes.len() {
            let _ = decode(&bytes[..end]);
        }
        seen += 1;
    }
    assert!(seen > 10);
}
