// SHA-256 (FIPS 180-4) piece by piece: the browser's own digest wants the whole file in memory
// and exists on https pages only.
class Sha256 {
  constructor() {
    this.state = Uint32Array.from(Sha256.start);
    this.block = new Uint8Array(64);
    this.filled = 0;
    this.length = 0;
    this.words = new Int32Array(64);
  }

  update(bytes) {
    this.length += bytes.length;
    let at = 0;
    if (this.filled) {
      at = Math.min(64 - this.filled, bytes.length);
      this.block.set(bytes.subarray(0, at), this.filled);
      this.filled += at;
      if (this.filled < 64) return this;
      this.compress(this.block, 0);
      this.filled = 0;
    }
    for (; at + 64 <= bytes.length; at += 64) this.compress(bytes, at);
    this.block.set(bytes.subarray(at));
    this.filled = bytes.length - at;
    return this;
  }

  hex() {
    const bits = BigInt(this.length) * 8n;
    const tail = new Uint8Array((this.filled < 56 ? 64 : 128) - this.filled);
    tail[0] = 0x80;
    new DataView(tail.buffer).setBigUint64(tail.length - 8, bits);
    this.update(tail);
    return Array.from(this.state, (word) => word.toString(16).padStart(8, "0")).join("");
  }

  compress(bytes, at) {
    const w = this.words, k = Sha256.round, s = this.state;
    for (let i = 0; i < 16; i++, at += 4) {
      w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15], y = w[i - 2];
      const low = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const high = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16] + low + w[i - 7] + high) | 0;
    }
    let a = s[0] | 0, b = s[1] | 0, c = s[2] | 0, d = s[3] | 0;
    let e = s[4] | 0, f = s[5] | 0, g = s[6] | 0, h = s[7] | 0;
    for (let i = 0; i < 64; i++) {
      const big = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const one = (h + big + ((e & f) ^ (~e & g)) + k[i] + w[i]) | 0;
      const sum = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const two = (sum + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + one) | 0; d = c; c = b; b = a; a = (one + two) | 0;
    }
    s[0] += a; s[1] += b; s[2] += c; s[3] += d; s[4] += e; s[5] += f; s[6] += g; s[7] += h;
  }
}

// The constants are the fractions of the square and cube roots of the first primes.
(() => {
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
  // Exact, by integers: floor(root(n * 2^(32 * degree))) modulo 2^32.
  const fraction = (n, degree) => {
    const target = BigInt(n) << BigInt(32 * degree);
    let low = 0n, high = 1n << 40n;
    while (high - low > 1n) {
      const middle = (low + high) >> 1n;
      if (middle ** BigInt(degree) <= target) low = middle; else high = middle;
    }
    return Number(low & 0xffffffffn);
  };
  Sha256.start = primes.slice(0, 8).map((n) => fraction(n, 2));
  Sha256.round = Int32Array.from(primes, (n) => fraction(n, 3));
})();

async function digestOf(file) {
  const sum = new Sha256();
  const reader = file.stream().getReader();
  for (let piece; !(piece = await reader.read()).done; ) sum.update(piece.value);
  return sum.hex();
}
