//! Deltas: the valid contents of a bucket, and hostile bytes.

use bucketq::error::Code;
use bucketq::internals::pages::{Delta, PAGE, Pages};

use crate::{Rng, contents};

/// A state, and a delta on it with literals, copies, a new page and a reserved page.
fn sample() -> (Pages, Delta) {
    let mut rng = Rng(7);
    let start = rng.bytes(4 * PAGE);
    let mut pages = Pages::from_image(&start).expect("whole pages");
    pages.write(3, b"changed");
    pages.write(PAGE as u64 + 500, &start[PAGE + 100..PAGE + 400]);
    pages.write(2 * PAGE as u64, &rng.bytes(300));
    pages.write(5 * PAGE as u64, b"new, with a page of zeros before");
    let delta = pages.take_changes().delta();
    (Pages::from_image(&start).expect("whole pages"), delta)
}

/// The rules for every delta that decodes.
fn sound(bytes: &[u8], max_pages: u32) {
    match Delta::decode(bytes, max_pages) {
        Err(error) => assert_eq!(error.code(), Code::Corrupt, "{error}"),
        Ok(delta) => {
            assert!(delta.page_count() <= max_pages);
            assert_eq!(delta.encode(), bytes, "one delta, one encoding");
            let mut pages = Pages::from_image(&[7; 4 * PAGE]).expect("whole pages");
            pages.apply(&delta).expect("it is in range");
            assert_eq!(pages.page_count(), delta.page_count());
        }
    }
}

#[test]
fn a_delta_survives_its_encoding() {
    let (mut pages, delta) = sample();
    let decoded = Delta::decode(&delta.encode(), 6).expect("six pages are allowed");
    assert_eq!(decoded, delta);
    assert_eq!((decoded.page_count(), decoded.patched()), (6, 4));
    pages.apply(&decoded).expect("settled");
    assert_eq!(&contents(&pages)[3..10], b"changed");
}

#[test]
fn bytes_moved_within_a_page_cost_next_to_nothing() {
    let start = Rng(3).bytes(PAGE);
    let mut pages = Pages::from_image(&start).expect("one page");
    pages.write(1000, &start[996..3000]);
    let size = pages.take_changes().delta().encode().len();
    assert!(size < 40, "{size} bytes for one move");
}

#[test]
fn no_truncation_of_a_delta_decodes() {
    let bytes = sample().1.encode();
    for len in 0..bytes.len() {
        let error = Delta::decode(&bytes[..len], 6).expect_err("something is missing");
        assert_eq!(error.code(), Code::Corrupt);
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(Delta::decode(&longer, 6).expect_err("one byte too many").code(), Code::Corrupt);
}

#[test]
fn a_flipped_bit_never_leads_out_of_range() {
    let bytes = sample().1.encode();
    let step = if cfg!(miri) { 997 } else { 1 };
    for bit in (0..bytes.len() * 8).step_by(step) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        sound(&flipped, 6);
    }
}

#[test]
fn noise_never_leads_out_of_range() {
    let mut rng = Rng(11);
    let bytes = sample().1.encode();
    for _ in 0..if cfg!(miri) { 2 } else { 20_000 } {
        let mut noise = bytes.clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(40.min(noise.len() as u64)) as usize;
            noise[at] = rng.next() as u8;
        }
        sound(&noise, 6);
        let len = rng.below(40) as usize;
        sound(&rng.bytes(len), 6);
    }
}

#[test]
fn hostile_sizes_are_refused() {
    let huge = [0xFF, 0xFF, 0xFF, 0xFF, 0x0F];
    let refused = |bytes: &[u8]| Delta::decode(bytes, 100).expect_err("hostile").to_string();
    assert!(refused(&huge).contains("4294967295 pages where 100 are allowed"));
    assert!(refused(&[&[1][..], &huge].concat()).contains("items"), "patches");
    assert!(refused(&[&[1, 1, 1][..], &huge].concat()).contains("items"), "runs");
    assert!(refused(&[1, 1, 1, 1, 0xFF, 0x1F, 4, 0, 0]).contains("a run of"), "past the end of the page");
    assert!(refused(&[1, 1, 2, 1, 0, 2, 0]).contains("page 0 + 2 of 1"));
    assert!(refused(&[1, 1, 0, 1, 0, 2, 0]).contains("page 0 + 0 of 1"));
    assert!(refused(&[1, 1, 1, 1, 0, 3, 1]).contains("outside the page"), "a copy from before the page");
    assert!(
        refused(&[1, 1, 1, 1, 0, 33, 0xF4, 0x3F]).contains("outside the page"),
        "a copy from past its end"
    );
    assert!(refused(&[1, 1, 1, 1, 0, 0, 0]).contains("a run of 0 bytes"));
    assert!(refused(&[0x81, 0x00, 0]).contains("too long"), "a needless zero");
}
