//! `cargo bench`: what each kernel of the core does on this CPU, without Python.

#![allow(clippy::print_stdout, reason = "the table is the result")]
#![allow(clippy::unwrap_used, reason = "a benchmark may stop on what cannot happen")]

use core::hint::black_box;
use core::mem::MaybeUninit;
use std::time::Instant;

use agent_sandbox_core::base64::{self, Kernel, Plan};
use agent_sandbox_core::capped::Capped;
use agent_sandbox_core::sha256::Sha256;

const SIZES: [usize; 4] = [48, 64 << 10, 1 << 20, 16 << 20];
const CHUNK: usize = 64 << 10;

/// Prints the median speed of `work` on `size` bytes.
fn report(name: &str, size: usize, mut work: impl FnMut()) {
    let repeats = ((1 << 18) / size).max(1);
    let mut seconds: Vec<f64> = (0..31)
        .map(|_| {
            let start = Instant::now();
            (0..repeats).for_each(|_| work());
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2**52")]
    let bytes = (size * repeats) as f64;
    let median = seconds.get(seconds.len() / 2).unwrap();
    println!("{name:32} {size:>9} B  {:7.2} GB/s", bytes / median / 1e9);
}

fn main() {
    for size in SIZES {
        let raw: Vec<u8> = (0..size).map(|i| (i * 167).to_le_bytes()[0]).collect();
        let mut text = vec![MaybeUninit::new(0); base64::encoded_len(size).unwrap()];
        let mut out = vec![MaybeUninit::new(0); size];
        for kernel in Kernel::all() {
            report(&format!("encode {kernel:?}"), size, || {
                base64::encode(kernel, black_box(&raw), &mut text, |_| ()).unwrap();
            });
            let mut encoded = Vec::with_capacity(text.len());
            // The core writes valid symbols only; they are read back through its own decoder.
            encoded.extend(text.iter().map(|slot| read(*slot)));
            let plan = Plan::new(encoded.len(), base64::trailing_padding(&encoded), None).unwrap();
            report(&format!("decode {kernel:?}"), size, || {
                base64::decode(kernel, black_box(&encoded), plan, &mut out, |_| ()).unwrap();
            });
            report(&format!("decode + sha256 {kernel:?}"), size, || {
                let mut hash = Sha256::default();
                let seen = |piece: &[u8]| hash.update(piece);
                base64::decode(kernel, black_box(&encoded), plan, &mut out, seen).unwrap();
                black_box(hash.digest());
            });
        }
        report("sha256", size, || {
            let mut hash = Sha256::default();
            hash.update(black_box(&raw));
            black_box(hash.digest());
        });
        report("capped", size, || {
            let mut capped = Capped::<Vec<MaybeUninit<u8>>>::new(u64::MAX, false);
            raw.chunks(CHUNK).for_each(|chunk| capped.append(chunk).unwrap());
            black_box(capped.finish().unwrap());
        });
    }
}

#[expect(unsafe_code, reason = "the slot was written when the room was made")]
fn read(slot: MaybeUninit<u8>) -> u8 {
    // SAFETY: `main` filled the room with zeros.
    unsafe { slot.assume_init() }
}
