#include "kernels/checksum.h"

#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>  // SSE2 is part of x86-64: no check needed
#endif

namespace tidemill {
namespace {

constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
constexpr std::size_t kShift = 16;  // bytes between the keys of the two sums

std::uint64_t load_u64(const std::uint8_t* p) {
  std::uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

#if defined(__x86_64__)

__m128i load_128(const std::uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// Products of the low and high halves of both words.
__m128i products(__m128i words, __m128i key) {
  const __m128i sums = _mm_add_epi32(words, key);
  return _mm_mul_epu32(sums, _mm_srli_epi64(sums, 32));
}

std::uint64_t total(__m128i sums) {
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums))));
}

void nh_block(const std::uint8_t* data, const std::uint8_t* key, std::uint64_t (&out)[2]) {
  __m128i first = _mm_setzero_si128(), second = _mm_setzero_si128();
  __m128i now = load_128(key);
  for (std::size_t i = 0; i < kChecksumBlock; i += 16) {
    const __m128i next = load_128(key + i + kShift);
    const __m128i words = load_128(data + i);
    first = _mm_add_epi64(first, products(words, now));
    second = _mm_add_epi64(second, products(words, next));
    now = next;
  }
  out[0] = total(first);
  out[1] = total(second);
}

#else

std::uint64_t product(std::uint64_t word, std::uint64_t key) {
  const auto low = static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(key);
  const auto high = static_cast<std::uint32_t>(word >> 32) + static_cast<std::uint32_t>(key >> 32);
  return std::uint64_t{low} * high;
}

void nh_block(const std::uint8_t* data, const std::uint8_t* key, std::uint64_t (&out)[2]) {
  out[0] = out[1] = 0;
  for (std::size_t i = 0; i < kChecksumBlock; i += 8) {
    const std::uint64_t word = load_u64(data + i);
    out[0] += product(word, load_u64(key + i));
    out[1] += product(word, load_u64(key + i + kShift));
  }
}

#endif

std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide wide = Wide{a} * b;
  const std::uint64_t sum = (static_cast<std::uint64_t>(wide) & kPrime) + static_cast<std::uint64_t>(wide >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

class Polynomial {
 public:
  explicit Polynomial(std::uint64_t key) : key_(key % kPrime) {}

  void take(std::uint64_t word) {
    step(word >> 32);
    step(word & 0xffffffffu);
  }
  std::uint64_t value() const { return value_; }

 private:
  void step(std::uint64_t half) {
    value_ = times(value_, key_) + half;
    if (value_ >= kPrime) value_ -= kPrime;
  }

  std::uint64_t key_;
  std::uint64_t value_ = 1;
};

}  // namespace

Checksum checksum(const std::uint8_t* data, std::size_t bytes, const std::uint8_t* key) {
  Polynomial first(load_u64(key + kChecksumBlock + kShift)), second(load_u64(key + kChecksumBlock + kShift + 8));
  std::uint64_t sums[2];
  const auto take = [&](const std::uint8_t* block) {
    nh_block(block, key, sums);
    first.take(sums[0]);
    second.take(sums[1]);
  };
  std::size_t at = 0;
  for (; at + kChecksumBlock <= bytes; at += kChecksumBlock) take(data + at);
  if (at < bytes) {
    std::uint8_t last[kChecksumBlock] = {};
    std::memcpy(last, data + at, bytes - at);
    take(last);
  }
  first.take(bytes);
  second.take(bytes);
  return {{first.value(), second.value()}};
}

}  // namespace tidemill
