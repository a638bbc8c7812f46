//! SHA-256 (FIPS 180-4) on ring's assembly, which is fast with and without SHA instructions.

use ring::digest::{Context, Digest, SHA256};

/// A running hash; the digest depends on the bytes, not on their chunking.
#[derive(Clone)]
pub struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Sha256 {
    /// Hashes more bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of everything so far; more may follow.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        to_array(&self.0.clone().finish())
    }

    /// Ends the hash and returns its digest in lower-case hex.
    #[must_use]
    pub fn into_hex(self) -> [u8; 64] {
        to_hex(&to_array(&self.0.finish()))
    }
}

fn to_array(digest: &Digest) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

/// Returns a digest as 64 lower-case hex symbols (ASCII).
#[must_use]
pub fn to_hex(digest: &[u8; 32]) -> [u8; 64] {
    let symbol = |nibble: u8| nibble + if nibble < 10 { b'0' } else { b'a' - 10 };
    let mut hex = [0; 64];
    for (pair, byte) in hex.as_chunks_mut::<2>().0.iter_mut().zip(digest) {
        *pair = [symbol(byte >> 4), symbol(byte & 15)];
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::{Sha256, to_hex};

    #[test]
    fn any_split_gives_the_digest_of_the_whole() {
        let message: Vec<u8> = (0..200_u8).collect();
        let mut whole = Sha256::default();
        whole.update(&message);
        for split in 0..=message.len() {
            let (head, tail) = message.split_at(split);
            let mut parts = Sha256::default();
            parts.update(head);
            parts.update(tail);
            assert_eq!(parts.digest(), whole.digest());
        }
    }

    #[test]
    fn the_empty_message_has_its_known_digest() {
        let hex = to_hex(&Sha256::default().digest());
        assert!(hex.starts_with(b"e3b0c44298fc1c149afbf4c8996fb924"));
        assert_eq!(Sha256::default().into_hex(), hex);
    }

    #[test]
    fn a_digest_in_between_disturbs_nothing_and_copies_diverge() {
        let mut first = Sha256::default();
        first.update(b"a");
        let _ = first.digest();
        let mut second = first.clone();
        first.update(b"bc");
        second.update(b"x");
        assert!(to_hex(&first.digest()).starts_with(b"ba7816bf8f01cfea"));
        assert_ne!(first.digest(), second.digest());
    }
}
