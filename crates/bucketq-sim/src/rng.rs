//! One seed, many draws: the only source of randomness in a simulated world.
//!
//! Used by every module here; the engine gets it as its [`Entropy`]. It never reads a clock or the machine.

use std::sync::atomic::{AtomicU64, Ordering};

use bucketq::env::Entropy;

/// A splitmix64 counter. Shared by reference: a world runs on one thread, so the order of draws is the order of events.
#[derive(Debug)]
pub struct Rng(AtomicU64);

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Rng {
    /// Returns the draws of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Returns a separate stream, so that the draws of one part do not shift another's.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self::new(self.draw())
    }

    /// 64 bits.
    pub fn draw(&self) -> u64 {
        mix(self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP))
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True in `per_million` of a million draws.
    pub fn chance(&self, per_million: u64) -> bool {
        self.below(1_000_000) < per_million
    }

    /// True once in `n` draws.
    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// From `low` to `high`, each order of magnitude equally likely.
    pub fn spread(&self, low: u64, high: u64) -> u64 {
        let (bits_low, bits_high) = (low.max(1).ilog2(), high.max(1).ilog2());
        let bits = self.between(u64::from(bits_low), u64::from(bits_high));
        self.between(1 << bits, (2 << bits) - 1).clamp(low, high)
    }
}

/// A well mixed function of one number.
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random bytes for one life of one node.
#[derive(Debug)]
pub struct SimEntropy {
    rng: Rng,
    /// Requests of this number of bytes get the same bytes each time (broken variants); 0 for none.
    fixed: usize,
}

impl SimEntropy {
    /// Bytes drawn from `rng`; requests of the length `fixed`, if not 0, get constants.
    pub const fn new(rng: Rng, fixed: usize) -> Self {
        Self { rng, fixed }
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let constant = self.fixed != 0 && bytes.len() == self.fixed;
        for chunk in bytes.chunks_mut(8) {
            let draw = if constant { 7 } else { self.rng.draw() };
            chunk.copy_from_slice(&draw.to_le_bytes()[..chunk.len()]);
        }
    }
}
