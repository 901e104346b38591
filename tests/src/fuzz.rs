//! The targets of the program `fuzz`, and the mutator that makes inputs from inputs.

mod targets;

pub use targets::{TARGETS, Target};

/// Small random numbers from a seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Starts from this seed.
    pub fn new(seed: u64) -> Self {
        Self((seed ^ (seed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) | 1)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound as u64) as usize
    }

    /// Returns one of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Numbers at the ends of their ranges, as objects contain them.
const ENDS: &[u64] =
    &[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 40, i64::MAX as u64, u64::MAX];

/// Returns one of the kept inputs, changed in a few places.
pub fn mutated(kept: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut input = dice.pick(kept).clone();
    for _ in 0..=dice.below(4) {
        if input.is_empty() {
            input.push(dice.below(256) as u8);
        }
        let at = dice.below(input.len());
        match dice.below(9) {
            0 => input[at] ^= 1 << dice.below(8),
            1 => input[at] = dice.below(256) as u8,
            2 => input.truncate(at),
            3 => input.insert(at, dice.below(256) as u8),
            4 => drop(input.remove(at)),
            // A number at the end of its range, in place of another number.
            5 | 6 => {
                let width = *dice.pick(&[1, 2, 4, 8]);
                let bytes = dice.pick(ENDS).to_le_bytes();
                let end = input.len().min(at + width);
                input[at..end].copy_from_slice(&bytes[..end - at]);
            }
            // A piece of another input, or of this one.
            7 => {
                let other = dice.pick(kept);
                if !other.is_empty() {
                    let from = dice.below(other.len());
                    let len = 1 + dice.below((other.len() - from).min(64));
                    let end = input.len().min(at + len);
                    input.splice(at..end, other[from..from + len].iter().copied());
                }
            }
            _ => {
                let end = input.len().min(at + 1 + dice.below(64));
                input.drain(at..end);
            }
        }
    }
    input
}
