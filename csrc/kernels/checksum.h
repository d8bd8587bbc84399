// A keyed checksum of large data, at the speed of memory: changed or damaged bytes show.
//
// NH of UMAC (Black, Halevi, Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999; RFC 4418) over blocks of 1 KiB, twice with
// keys that are shifted against each other, then a polynomial over the blocks' results modulo 2^61 - 1 for each of the
// two. For a random key two different texts of one length collide with a probability below 2^-60 per MiB: against accidents,
// and against whoever does not know the key.
//
//   words of 64 bits w[i], key words k[i]:   nh = sum (lo(w) + lo(k)) * (hi(w) + hi(k))   mod 2^64, halves mod 2^32
//   h = ((h * r + hi(nh)) * r + lo(nh)) mod 2^61 - 1, last of all the length in bytes
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

inline constexpr std::size_t kChecksumBlock = 1024;                    // bytes
inline constexpr std::size_t kChecksumKey = kChecksumBlock + 16 + 16;  // bytes: NH key, its shift, two polynomial keys

struct Checksum {
  std::uint64_t words[2];
};

// `key`: kChecksumKey random bytes. The last block is filled up with zeros.
Checksum checksum(const std::uint8_t* data, std::size_t bytes, const std::uint8_t* key);

}  // namespace tidemill
