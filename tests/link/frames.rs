//! Frames arrive whole, however the stream is cut; damaged ones end the connection and cost no memory.

use bucketq::internals::frame::{Arrived, FRAME_HEAD, FrameReader, HELLO_MAX, PIECE, put_beat, put_message};
use bytes::Bytes;
use proptest::prelude::*;

const MOST: usize = 4 * PIECE;

fn beat(stamp: u64) -> Vec<u8> {
    let mut out = vec![];
    put_beat(&mut out, stamp);
    out
}

fn message(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![];
    put_message(&mut out, bytes);
    out
}

/// The frames that a reader finds in these pieces of a stream.
fn read<'a>(most: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Arrived>, bool) {
    let (mut reader, mut out) = (FrameReader::new(most), vec![]);
    for piece in pieces {
        if reader.feed(piece, &mut out).is_err() {
            return (out, false);
        }
    }
    (out, true)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_cut_anywhere_is_the_same_stream(
        sent in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..200).prop_map(|bytes| Arrived::Message(bytes.into())),
                (0..3 * PIECE).prop_map(|len| Arrived::Message(vec![7; len].into())),
                any::<u64>().prop_map(Arrived::Beat),
            ],
            0..8,
        ),
        cuts in prop::collection::vec(1..100_000_usize, 1..20),
    ) {
        let stream: Vec<u8> = sent.iter().flat_map(|one| match one {
            Arrived::Message(bytes) => message(bytes),
            Arrived::Beat(stamp) => beat(*stamp),
        }).collect();
        let mut pieces = vec![];
        let (mut left, mut cuts) = (stream.as_slice(), cuts.into_iter().cycle());
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min(cuts.next().unwrap_or(1)));
            pieces.push(piece);
            left = rest;
        }
        prop_assert_eq!(read(MOST, pieces), (sent, true));
    }
}

#[test]
fn a_stream_of_single_bytes_is_the_same_stream() {
    let stream = [message(b"one"), beat(9), message(b""), message(b"two")].concat();
    let sent = [
        Arrived::Message(Bytes::from_static(b"one")),
        Arrived::Beat(9),
        Arrived::Message(Bytes::new()),
        Arrived::Message(Bytes::from_static(b"two")),
    ];
    assert_eq!(read(MOST, stream.chunks(1)), (sent.to_vec(), true));
}

#[test]
fn a_heartbeat_gets_through_between_the_pieces_of_a_message() {
    let mut stream = message(&vec![1; 2 * PIECE]);
    stream.splice(FRAME_HEAD + PIECE..FRAME_HEAD + PIECE, beat(5));
    let sent = vec![Arrived::Beat(5), Arrived::Message(vec![1; 2 * PIECE].into())];
    assert_eq!(read(MOST, [stream.as_slice()]), (sent, true));
}

#[test]
fn damaged_frames_end_the_connection() {
    let damaged: [(&str, Vec<u8>); 7] = [
        ("of no kind", vec![9, 0, 0, 0]),
        ("of kind 0", vec![0; 8]),
        ("a piece of 16 MiB", vec![2, 0xff, 0xff, 0xff]),
        ("one byte too large", vec![1, 1, 0, 4]),
        ("a piece without content", vec![1, 0, 0, 0]),
        ("a short heartbeat", vec![3, 7, 0, 0, 1, 2, 3, 4, 5, 6, 7]),
        ("words of another protocol", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
    ];
    for (name, bytes) in damaged {
        for cut in [1, 3, bytes.len()] {
            assert_eq!(read(MOST, bytes.chunks(cut)), (vec![], false), "{name}");
        }
        let mut reader = FrameReader::new(MOST);
        assert!(reader.feed(&bytes, &mut vec![]).is_err());
        assert!(reader.feed(&beat(1), &mut vec![]).is_err(), "{name}: nothing after it counts");
    }
}

#[test]
fn a_message_that_is_too_large_ends_the_connection_before_it_is_complete() {
    let stream = message(&vec![1; 10 * PIECE]);
    let (mut reader, mut out, mut fed) = (FrameReader::new(HELLO_MAX), vec![], 0);
    for piece in stream.chunks(1_000) {
        if reader.feed(piece, &mut out).is_err() {
            break;
        }
        fed += piece.len();
        assert!(reader.held() <= fed, "no more is kept than has arrived");
    }
    assert!(fed < 2 * PIECE, "{fed} bytes were accepted");
    assert_eq!(out, []);
    // Once the other side has proven who it is, it may send more.
    let mut reader = FrameReader::new(HELLO_MAX);
    reader.accept(10 * PIECE);
    reader.feed(&stream, &mut out).expect("it is accepted");
    assert_eq!(out.len(), 1);
}

#[test]
fn a_length_that_promises_much_allocates_nothing() {
    let mut reader = FrameReader::new(usize::MAX);
    reader.feed(&[2, 0, 0, 4], &mut vec![]).expect("the largest piece");
    assert_eq!(reader.held(), FRAME_HEAD);
}
