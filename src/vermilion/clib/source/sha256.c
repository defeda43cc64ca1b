/* SHA-256, with the processor's instructions for it where there are any; digests of files in chunks.

   Source: FIPS 180-4; RFC 2104 (HMAC); Intel, "Intel SHA Extensions" (what the instructions do). */
#include <immintrin.h>

#include "internal.h"

#define VM_CHUNK_BYTES (8 * 1024 * 1024) /* `store/digest.py` says the same */

typedef struct vm_hash {
  uint32_t state[8];
  uint64_t bytes;
  unsigned char block[64];
} vm_hash;

static const uint32_t VM_ROUND[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t vm_big(const unsigned char *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint32_t vm_turn(uint32_t value, int by) { return value >> by | value << (32 - by); }

static void vm_blocks_plain(uint32_t state[8], const unsigned char *data, size_t blocks) {
  for (; blocks; blocks--, data += 64) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) w[i] = vm_big(data + 4 * i);
    for (int i = 16; i < 64; i++) {
      uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (vm_turn(a, 7) ^ vm_turn(a, 18) ^ a >> 3) + w[i - 7] +
             (vm_turn(b, 17) ^ vm_turn(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
      uint32_t one = s[7] + (vm_turn(s[4], 6) ^ vm_turn(s[4], 11) ^ vm_turn(s[4], 25)) +
                     ((s[4] & s[5]) ^ (~s[4] & s[6])) + VM_ROUND[i] + w[i];
      uint32_t two = (vm_turn(s[0], 2) ^ vm_turn(s[0], 13) ^ vm_turn(s[0], 22)) +
                     ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      memmove(s + 1, s, 7 * sizeof *s);
      s[4] += one;
      s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
  }
}

/* The instructions hold the state as (a, b, e, f) and (c, d, g, h), highest first, and do two rounds
   of four words each. */
__attribute__((target("sha,sse4.1,ssse3"))) static void vm_blocks_fast(
    uint32_t state[8], const unsigned char *data, size_t blocks) {
  const __m128i turned = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
  __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
  for (; blocks; blocks--, data += 64) {
    __m128i before_abef = abef, before_cdgh = cdgh, w[4];
    for (int i = 0; i < 16; i++) {
      __m128i words;
      if (i < 4) {
        words = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), turned);
      } else { /* w[i - 4], w[i - 3], w[i - 2], w[i - 1] are in a ring */
        __m128i sums = _mm_sha256msg1_epu32(w[i & 3], w[(i + 1) & 3]);
        sums = _mm_add_epi32(sums, _mm_alignr_epi8(w[(i + 3) & 3], w[(i + 2) & 3], 4));
        words = _mm_sha256msg2_epu32(sums, w[(i + 3) & 3]);
      }
      w[i & 3] = words;
      words = _mm_add_epi32(words, _mm_loadu_si128((const __m128i *)(VM_ROUND + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0E));
    }
    abef = _mm_add_epi32(abef, before_abef);
    cdgh = _mm_add_epi32(cdgh, before_cdgh);
  }
  uint32_t one[4], other[4];
  _mm_storeu_si128((__m128i *)one, abef);
  _mm_storeu_si128((__m128i *)other, cdgh);
  uint32_t found[8] = {one[3], one[2], other[3], other[2], one[1], one[0], other[1], other[0]};
  memcpy(state, found, sizeof found);
}

static bool vm_has_sha(void);

static void vm_blocks(uint32_t state[8], const unsigned char *data, size_t blocks) {
  if (vm_has_sha())
    vm_blocks_fast(state, data, blocks);
  else
    vm_blocks_plain(state, data, blocks);
}

static void vm_hash_begin(vm_hash *hash) {
  static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(hash->state, first, sizeof first);
  hash->bytes = 0;
}

static void vm_hash_add(vm_hash *hash, const void *data, size_t bytes) {
  const unsigned char *at = data;
  size_t held = hash->bytes % 64;
  hash->bytes += bytes;
  if (held) {
    size_t some = bytes < 64 - held ? bytes : 64 - held;
    memcpy(hash->block + held, at, some);
    at += some;
    bytes -= some;
    if (held + some < 64) return;
    vm_blocks(hash->state, hash->block, 1);
  }
  if (bytes >= 64) vm_blocks(hash->state, at, bytes / 64);
  if (bytes % 64) memcpy(hash->block, at + bytes / 64 * 64, bytes % 64);
}

static void vm_hash_end(vm_hash *hash, unsigned char digest[32]) {
  static const unsigned char padding[64] = {0x80};
  uint64_t bits = 8 * hash->bytes;
  size_t held = hash->bytes % 64;
  unsigned char length[8];
  for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
  vm_hash_add(hash, padding, held < 56 ? 56 - held : 120 - held);
  vm_hash_add(hash, length, 8);
  for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

static void vm_sha256(const void *data, size_t bytes, unsigned char digest[32]) {
  vm_hash hash;
  vm_hash_begin(&hash);
  vm_hash_add(&hash, data, bytes);
  vm_hash_end(&hash, digest);
}

static void vm_as_hex(const unsigned char digest[32], char text[65]) {
  for (int i = 0; i < 32; i++) sprintf(text + 2 * i, "%02x", digest[i]);
}

/* The digest of a file: of one chunk its own, of more that of the chunks' digests. */
static void vm_file_digest(vm_bytes data, char text[65]) {
  unsigned char digest[32];
  if (data.size <= VM_CHUNK_BYTES) {
    vm_sha256(data.data, data.size, digest);
  } else {
    vm_hash all;
    vm_hash_begin(&all);
    for (size_t at = 0; at < data.size; at += VM_CHUNK_BYTES) {
      size_t left = data.size - at;
      vm_sha256(data.data + at, left < VM_CHUNK_BYTES ? left : VM_CHUNK_BYTES, digest);
      vm_hash_add(&all, digest, 32);
    }
    vm_hash_end(&all, digest);
  }
  vm_as_hex(digest, text);
}

/* The code of a text by a secret of at most 64 bytes. */
static void vm_hmac(const unsigned char *key, size_t key_bytes, const char *text, char code[65]) {
  unsigned char block[64], digest[32];
  vm_hash hash;
  for (int outer = 0; outer < 2; outer++) {
    for (size_t i = 0; i < 64; i++)
      block[i] = (unsigned char)((i < key_bytes ? key[i] : 0) ^ (outer ? 0x5C : 0x36));
    vm_hash_begin(&hash);
    vm_hash_add(&hash, block, 64);
    if (outer)
      vm_hash_add(&hash, digest, 32);
    else
      vm_hash_add(&hash, text, strlen(text));
    vm_hash_end(&hash, digest);
  }
  vm_as_hex(digest, code);
}
