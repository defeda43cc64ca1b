/* Ed25519 signatures, checked: RFC 8032 (PureEdDSA over edwards25519) with the SHA-512 of FIPS 180-4.

   It holds no secrets, so it need not take the same time for all keys. Nothing is allocated. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- SHA-512 ---- */

/* The first 64 bits of the fractions of the cube roots of the first 80 primes. */
static const uint64_t VM_SHA512_ROUNDS[80] = {
    0x428a2f98d728ae22, 0x7137449123ef65cd, 0xb5c0fbcfec4d3b2f, 0xe9b5dba58189dbbc,
    0x3956c25bf348b538, 0x59f111f1b605d019, 0x923f82a4af194f9b, 0xab1c5ed5da6d8118,
    0xd807aa98a3030242, 0x12835b0145706fbe, 0x243185be4ee4b28c, 0x550c7dc3d5ffb4e2,
    0x72be5d74f27b896f, 0x80deb1fe3b1696b1, 0x9bdc06a725c71235, 0xc19bf174cf692694,
    0xe49b69c19ef14ad2, 0xefbe4786384f25e3, 0x0fc19dc68b8cd5b5, 0x240ca1cc77ac9c65,
    0x2de92c6f592b0275, 0x4a7484aa6ea6e483, 0x5cb0a9dcbd41fbd4, 0x76f988da831153b5,
    0x983e5152ee66dfab, 0xa831c66d2db43210, 0xb00327c898fb213f, 0xbf597fc7beef0ee4,
    0xc6e00bf33da88fc2, 0xd5a79147930aa725, 0x06ca6351e003826f, 0x142929670a0e6e70,
    0x27b70a8546d22ffc, 0x2e1b21385c26c926, 0x4d2c6dfc5ac42aed, 0x53380d139d95b3df,
    0x650a73548baf63de, 0x766a0abb3c77b2a8, 0x81c2c92e47edaee6, 0x92722c851482353b,
    0xa2bfe8a14cf10364, 0xa81a664bbc423001, 0xc24b8b70d0f89791, 0xc76c51a30654be30,
    0xd192e819d6ef5218, 0xd69906245565a910, 0xf40e35855771202a, 0x106aa07032bbd1b8,
    0x19a4c116b8d2d0c8, 0x1e376c085141ab53, 0x2748774cdf8eeb99, 0x34b0bcb5e19b48a8,
    0x391c0cb3c5c95a63, 0x4ed8aa4ae3418acb, 0x5b9cca4f7763e373, 0x682e6ff3d6b2b8a3,
    0x748f82ee5defb2fc, 0x78a5636f43172f60, 0x84c87814a1f0ab72, 0x8cc702081a6439ec,
    0x90befffa23631e28, 0xa4506cebde82bde9, 0xbef9a3f7b2c67915, 0xc67178f2e372532b,
    0xca273eceea26619c, 0xd186b8c721c0c207, 0xeada7dd6cde0eb1e, 0xf57d4f7fee6ed178,
    0x06f067aa72176fba, 0x0a637dc5a2c898a6, 0x113f9804bef90dae, 0x1b710b35131c471b,
    0x28db77f523047d84, 0x32caab7b40c72493, 0x3c9ebe0a15c9bebc, 0x431d67c49c100d4c,
    0x4cc5d4becb3e42b6, 0x597f299cfc657e2a, 0x5fcb6fab3ad6faec, 0x6c44198c4a475817
};

typedef struct vm_sha512 {
  uint64_t state[8];
  uint64_t bytes;
  uint8_t block[128];
} vm_sha512;

static uint64_t vm_rotated(uint64_t value, int by) { return value >> by | value << (64 - by); }

static uint64_t vm_big_endian(const uint8_t *at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; i++) value = value << 8 | at[i];
  return value;
}

static void vm_sha512_block(vm_sha512 *hash) {
  uint64_t w[80], s[8];
  for (int i = 0; i < 16; i++) w[i] = vm_big_endian(hash->block + 8 * i);
  for (int i = 16; i < 80; i++) {
    uint64_t low = vm_rotated(w[i - 15], 1) ^ vm_rotated(w[i - 15], 8) ^ w[i - 15] >> 7;
    uint64_t high = vm_rotated(w[i - 2], 19) ^ vm_rotated(w[i - 2], 61) ^ w[i - 2] >> 6;
    w[i] = w[i - 16] + low + w[i - 7] + high;
  }
  memcpy(s, hash->state, sizeof s);
  for (int i = 0; i < 80; i++) {
    uint64_t sum1 = vm_rotated(s[4], 14) ^ vm_rotated(s[4], 18) ^ vm_rotated(s[4], 41);
    uint64_t sum0 = vm_rotated(s[0], 28) ^ vm_rotated(s[0], 34) ^ vm_rotated(s[0], 39);
    uint64_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    uint64_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    uint64_t first = s[7] + sum1 + choice + VM_SHA512_ROUNDS[i] + w[i];
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += first;
    s[0] = first + sum0 + majority;
  }
  for (int i = 0; i < 8; i++) hash->state[i] += s[i];
}

static void vm_sha512_begin(vm_sha512 *hash) {
  /* The same of the square roots of the first 8 primes. */
  static const uint64_t first[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                                    0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                                    0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
  memcpy(hash->state, first, sizeof first);
  hash->bytes = 0;
}

static void vm_sha512_take(vm_sha512 *hash, const uint8_t *data, size_t size) {
  while (size) {
    size_t filled = (size_t)(hash->bytes % 128);
    size_t some = size < 128 - filled ? size : 128 - filled;
    memcpy(hash->block + filled, data, some);
    hash->bytes += some;
    data += some;
    size -= some;
    if (filled + some == 128) vm_sha512_block(hash);
  }
}

static void vm_sha512_end(vm_sha512 *hash, uint8_t digest[64]) {
  static const uint8_t padding[128] = {0x80};
  uint64_t bits = 8 * hash->bytes; /* messages here have far less than 2^61 bytes */
  uint8_t length[16] = {0};
  for (int i = 0; i < 8; i++) length[15 - i] = (uint8_t)(bits >> (8 * i));
  size_t filled = (size_t)(hash->bytes % 128);
  vm_sha512_take(hash, padding, (filled < 112 ? 112 : 240) - filled);
  vm_sha512_take(hash, length, sizeof length);
  for (int i = 0; i < 64; i++) digest[i] = (uint8_t)(hash->state[i / 8] >> (56 - 8 * (i % 8)));
}

/* ---- numbers modulo p = 2^255 - 19, as five digits of 51 bits ---- */

typedef struct vm_field {
  uint64_t digits[5];
} vm_field;

__extension__ typedef unsigned __int128 vm_wide;

#define VM_DIGIT ((UINT64_C(1) << 51) - 1)

static const vm_field VM_ZERO = {{0}}, VM_ONE = {{1}};
/* d = -121665/121666, and twice that; a square root of -1. */
static const vm_field VM_D = {
    {0x34dca135978a3, 0x1a8283b156ebd, 0x5e7a26001c029, 0x739c663a03cbb, 0x52036cee2b6ff}};
static const vm_field VM_2D = {
    {0x69b9426b2f159, 0x35050762add7a, 0x3cf44c0038052, 0x6738cc7407977, 0x2406d9dc56dff}};
static const vm_field VM_ROOT = {
    {0x61b274a0ea0b0, 0xd5a5fc8f189d, 0x7ef5e9cbd0c60, 0x78595a6804c9e, 0x2b8324804fc1d}};

/* Digits of at most 52 bits again, of digits of at most 63. */
static vm_field vm_carried(vm_field a) {
  uint64_t carry = 0;
  for (int i = 0; i < 5; i++) {
    a.digits[i] += carry;
    carry = a.digits[i] >> 51;
    a.digits[i] &= VM_DIGIT;
  }
  a.digits[0] += 19 * carry;
  return a;
}

static vm_field vm_sum(vm_field a, vm_field b) {
  for (int i = 0; i < 5; i++) a.digits[i] += b.digits[i];
  return vm_carried(a);
}

static vm_field vm_difference(vm_field a, vm_field b) {
  /* 4p is added first, so that no digit goes below 0. */
  a.digits[0] += 4 * (VM_DIGIT - 18) - b.digits[0];
  for (int i = 1; i < 5; i++) a.digits[i] += 4 * VM_DIGIT - b.digits[i];
  return vm_carried(a);
}

static vm_field vm_product(vm_field a, vm_field b) {
  vm_wide sums[5] = {0}, carry = 0;
  vm_field result;
  for (int i = 0; i < 5; i++)
    for (int k = 0; k < 5; k++) {
      uint64_t other = i + k < 5 ? b.digits[k] : 19 * b.digits[k]; /* 2^255 = 19 */
      sums[(i + k) % 5] += (vm_wide)a.digits[i] * other;
    }
  for (int i = 0; i < 5; i++) {
    sums[i] += carry;
    result.digits[i] = (uint64_t)sums[i] & VM_DIGIT;
    carry = sums[i] >> 51;
  }
  /* What is left over has less than 64 bits, 19 times it less than 2^69. */
  carry = carry * 19 + result.digits[0];
  result.digits[0] = (uint64_t)carry & VM_DIGIT;
  result.digits[1] += (uint64_t)(carry >> 51);
  return result;
}

/* A power whose exponent has `lowest` and `highest` as its bytes and ones between them. */
static vm_field vm_power(vm_field a, uint8_t lowest, uint8_t highest) {
  vm_field result = VM_ONE;
  for (int bit = 255; bit >= 0; bit--) {
    uint8_t byte = bit < 8 ? lowest : bit >= 248 ? highest : 0xff;
    result = vm_product(result, result);
    if (byte >> (bit % 8) & 1) result = vm_product(result, a);
  }
  return result;
}

static void vm_field_bytes(vm_field a, uint8_t bytes[32]) {
  a = vm_carried(vm_carried(a));
  /* a < 2^255 + 19 now: p is taken away where a >= p, that is, where a + 19 reaches 2^255. */
  uint64_t over = 19, carry = 0;
  for (int i = 0; i < 5; i++) over = (a.digits[i] + over) >> 51;
  a.digits[0] += 19 * over;
  for (int i = 0; i < 5; i++) {
    a.digits[i] += carry;
    carry = a.digits[i] >> 51;
    a.digits[i] &= VM_DIGIT;
  }
  memset(bytes, 0, 32);
  for (int bit = 0; bit < 255; bit++)
    bytes[bit / 8] |= (uint8_t)((a.digits[bit / 51] >> (bit % 51) & 1) << (bit % 8));
}

/* A number of 255 bits; the highest bit of the bytes is not looked at. */
static vm_field vm_field_of(const uint8_t bytes[32]) {
  vm_field a = VM_ZERO;
  for (int bit = 0; bit < 255; bit++)
    a.digits[bit / 51] |= (uint64_t)(bytes[bit / 8] >> (bit % 8) & 1) << (bit % 51);
  return a;
}

static bool vm_fields_equal(vm_field a, vm_field b) {
  uint8_t one[32], other[32];
  vm_field_bytes(a, one);
  vm_field_bytes(b, other);
  return !memcmp(one, other, 32);
}

/* ---- points: x = X/Z, y = Y/Z, x y = T/Z ---- */

typedef struct vm_point {
  vm_field x, y, z, t;
} vm_point;

static const vm_point VM_BASE = {
    {{0x62d608f25d51a, 0x412a4b4f6592a, 0x75b7171a4b31d, 0x1ff60527118fe, 0x216936d3cd6e5}},
    {{0x6666666666658, 0x4cccccccccccc, 0x1999999999999, 0x3333333333333, 0x6666666666666}},
    {{1}},
    {{0x68ab3a5b7dda3, 0xeea2a5eadbb, 0x2af8df483c27e, 0x332b375274732, 0x67875f0fd78b7}}};

/* Hisil, Wong, Carter, Dawson: Twisted Edwards Curves Revisited, section 3.1. Right for any two
   points of this curve, equal ones too. */
static vm_point vm_points_sum(vm_point p, vm_point q) {
  vm_field a = vm_product(vm_difference(p.y, p.x), vm_difference(q.y, q.x));
  vm_field b = vm_product(vm_sum(p.y, p.x), vm_sum(q.y, q.x));
  vm_field c = vm_product(vm_product(p.t, VM_2D), q.t);
  vm_field d = vm_product(vm_sum(p.z, p.z), q.z);
  vm_field e = vm_difference(b, a), f = vm_difference(d, c), g = vm_sum(d, c), h = vm_sum(b, a);
  return (vm_point){vm_product(e, f), vm_product(g, h), vm_product(f, g), vm_product(e, h)};
}

static void vm_point_bytes(vm_point p, uint8_t bytes[32]) {
  vm_field inverse = vm_power(p.z, 0xeb, 0x7f); /* to p - 2 = 2^255 - 21 */
  uint8_t x[32];
  vm_field_bytes(vm_product(p.x, inverse), x);
  vm_field_bytes(vm_product(p.y, inverse), bytes);
  bytes[31] |= (uint8_t)(x[0] << 7);
}

/* RFC 8032, 5.1.3. False where the bytes are of no point. */
static bool vm_point_of(const uint8_t bytes[32], vm_point *point) {
  uint8_t again[32];
  vm_field y = vm_field_of(bytes), square = vm_product(y, y);
  vm_field_bytes(y, again);
  if (memcmp(again, bytes, 31) || again[31] != (bytes[31] & 0x7f)) return false; /* y >= p */
  vm_field u = vm_difference(square, VM_ONE), v = vm_sum(vm_product(VM_D, square), VM_ONE);
  vm_field v3 = vm_product(vm_product(v, v), v);
  /* To (p - 5) / 8 = 2^252 - 3. */
  vm_field power = vm_power(vm_product(u, vm_product(vm_product(v3, v3), v)), 0xfd, 0x0f);
  vm_field x = vm_product(vm_product(u, v3), power);
  vm_field check = vm_product(v, vm_product(x, x));
  if (!vm_fields_equal(check, u)) {
    if (!vm_fields_equal(check, vm_difference(VM_ZERO, u))) return false;
    x = vm_product(x, VM_ROOT);
  }
  vm_field_bytes(x, again);
  int sign = bytes[31] >> 7;
  if (sign && vm_fields_equal(x, VM_ZERO)) return false;
  if ((again[0] & 1) != sign) x = vm_difference(VM_ZERO, x);
  *point = (vm_point){x, y, VM_ONE, vm_product(x, y)};
  return true;
}

/* ---- numbers modulo the order of the base point ---- */

static const uint64_t VM_ORDER[4] = {0x5812631a5cf5d3ed, 0x14def9dea2f79cd6, 0, 0x1000000000000000};

static bool vm_below_order(const uint64_t a[4]) {
  for (int i = 3; i >= 0; i--)
    if (a[i] != VM_ORDER[i]) return a[i] < VM_ORDER[i];
  return false;
}

/* The remainder of a number of 64 bytes. */
static void vm_remainder(const uint8_t bytes[64], uint64_t result[4]) {
  memset(result, 0, 4 * sizeof *result);
  for (int bit = 511; bit >= 0; bit--) {
    for (int i = 3; i > 0; i--) result[i] = result[i] << 1 | result[i - 1] >> 63;
    result[0] = result[0] << 1 | (uint64_t)(bytes[bit / 8] >> (bit % 8) & 1);
    if (vm_below_order(result)) continue;
    uint64_t borrow = 0;
    for (int i = 0; i < 4; i++) {
      vm_wide taken = (vm_wide)VM_ORDER[i] + borrow;
      borrow = taken > result[i];
      result[i] -= (uint64_t)taken;
    }
  }
}

/* ---- the check ---- */

/* Whether a signature of a message is the key's. */
static bool vm_ed25519_verify(const uint8_t signature[64], const uint8_t *message, size_t size,
                              const uint8_t key[32]) {
  uint64_t s[4] = {0}, h[4];
  for (int i = 0; i < 32; i++) s[i / 8] |= (uint64_t)signature[32 + i] << (8 * (i % 8));
  vm_point a;
  if (!vm_below_order(s) || !vm_point_of(key, &a)) return false;
  vm_sha512 hash;
  uint8_t digest[64], expected[32];
  vm_sha512_begin(&hash);
  vm_sha512_take(&hash, signature, 32);
  vm_sha512_take(&hash, key, 32);
  vm_sha512_take(&hash, message, size);
  vm_sha512_end(&hash, digest);
  vm_remainder(digest, h);
  /* s B - h A is the point that the signature begins with. */
  a.x = vm_difference(VM_ZERO, a.x);
  a.t = vm_difference(VM_ZERO, a.t);
  const vm_point zero = {VM_ZERO, VM_ONE, VM_ONE, VM_ZERO};
  const vm_point table[4] = {zero, VM_BASE, a, vm_points_sum(VM_BASE, a)};
  vm_point sum = zero;
  for (int bit = 252; bit >= 0; bit--) {
    uint64_t which = (s[bit / 64] >> (bit % 64) & 1) | (h[bit / 64] >> (bit % 64) & 1) << 1;
    sum = vm_points_sum(sum, sum);
    if (which) sum = vm_points_sum(sum, table[which]);
  }
  vm_point_bytes(sum, expected);
  return !memcmp(expected, signature, 32);
}
