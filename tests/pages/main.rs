//! The page store and the VFS against a byte-for-byte oracle.
//!
//! `store` and `delta` use no C and run under Miri with fewer cases: `make miri`.

mod delta;
#[cfg(not(miri))]
mod fuzz;
mod store;
#[cfg(not(miri))]
mod vfs;

use bucketq::internals::pages::{Image, Pages};

/// A small generator of numbers: the same seed, the same numbers.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    #[cfg(not(miri))]
    fn small(&mut self, bound: u32) -> u32 {
        self.below(u64::from(bound)) as u32
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn whole(image: &Image) -> Vec<u8> {
    let mut out = Vec::new();
    image.write_to(&mut out).expect("a Vec takes everything");
    out
}

fn contents(pages: &Pages) -> Vec<u8> {
    let mut out = vec![0; pages.bytes() as usize];
    assert!(pages.read(0, &mut out), "a file holds its own length");
    out
}
