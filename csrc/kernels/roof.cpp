// The loops are assembly, so that they need no compiler flags and nothing is optimised away: independent chains of one
// instruction, enough of them that nothing but its issue rate limits them.
#include "roof.h"

#include <cstring>

namespace tidemill {

namespace {

constexpr int kRounds = 20000;  // tens of microseconds a call
constexpr int kChains = 10;
constexpr int kTileRounds = 1000;

// What compilers make of plain loops, for processors without loops of their own here.
typedef float F4 __attribute__((vector_size(16)));
typedef std::int16_t I8 __attribute__((vector_size(16)));

template <class Lanes>
void multiply_plain() {
  Lanes sums[kChains] = {};
  Lanes factor = {};
  __asm__ volatile("" : "+m"(factor));
  for (int i = 0; i < kRounds; ++i) {
    for (Lanes& sum : sums) sum += factor * sum;
    __asm__ volatile("" : "+m"(sums));
  }
}

void read_plain(const std::uint8_t* bytes, std::size_t size) {
  typedef std::uint64_t U2 __attribute__((vector_size(16)));
  U2 sum = {};
  for (std::size_t i = 0; i < size; i += sizeof(U2)) {
    U2 value;
    std::memcpy(&value, bytes + i, sizeof value);
    sum ^= value;
  }
  __asm__ volatile("" : "+m"(sum));
}

#if defined(__x86_64__)

#define TIDEMILL_TEN(line, r)                                                                                         \
  line r "0\n\t" line r "1\n\t" line r "2\n\t" line r "3\n\t" line r "4\n\t" line r "5\n\t" line r "6\n\t" line r "7\n\t" \
  line r "8\n\t" line r "9\n\t"
#define TIDEMILL_LOW_REGISTERS                                                                                        \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm14", "xmm15"

#define TIDEMILL_CHAINS(name, line, r)                                                                      \
  void name() {                                                                                             \
    __asm__ volatile("vzeroall" ::: TIDEMILL_LOW_REGISTERS, "xmm10", "xmm11", "xmm12", "xmm13");            \
    for (int i = 0; i < kRounds; ++i) __asm__ volatile(TIDEMILL_TEN(line, r)::: TIDEMILL_LOW_REGISTERS);    \
    __asm__ volatile("vzeroupper" ::: TIDEMILL_LOW_REGISTERS);                                              \
  }

TIDEMILL_CHAINS(fma_256, "vfmadd231ps %%ymm14, %%ymm15, ", "%%ymm")
TIDEMILL_CHAINS(bytes_256, "vpmaddubsw %%ymm14, %%ymm15, ", "%%ymm")
TIDEMILL_CHAINS(fma_512, "vfmadd231ps %%zmm14, %%zmm15, ", "%%zmm")
TIDEMILL_CHAINS(dot_512, "vpdpbusd %%zmm14, %%zmm15, ", "%%zmm")

// Tiles of 16 x 64 bytes, the most that one product takes; six sums, one factor twice.
void tiles_amx() {
  struct alignas(64) Shapes {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static constexpr Shapes shapes;
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
  for (int i = 0; i < kTileRounds; ++i) {
    __asm__ volatile(
        "tdpbssd %%tmm6, %%tmm7, %%tmm0\n\ttdpbssd %%tmm6, %%tmm7, %%tmm1\n\ttdpbssd %%tmm6, %%tmm7, %%tmm2\n\t"
        "tdpbssd %%tmm6, %%tmm7, %%tmm3\n\ttdpbssd %%tmm6, %%tmm7, %%tmm4\n\ttdpbssd %%tmm6, %%tmm7, %%tmm5" ::);
  }
  __asm__ volatile("tilerelease");
}

#define TIDEMILL_READ(name, load, r, step)                                                                  \
  void name(const std::uint8_t* bytes, std::size_t size) {                                                  \
    const std::uint8_t* end = bytes + size;                                                                 \
    for (; bytes != end; bytes += 8 * step) {                                                               \
      __asm__ volatile(load " (%0), " r "0\n\t" load " %c1(%0), " r "1\n\t" load " %c2(%0), " r "2\n\t"     \
                       load " %c3(%0), " r "3\n\t" load " %c4(%0), " r "4\n\t" load " %c5(%0), " r "5\n\t"  \
                       load " %c6(%0), " r "6\n\t" load " %c7(%0), " r "7"                                  \
                       :                                                                                    \
                       : "r"(bytes), "i"(step), "i"(2 * step), "i"(3 * step), "i"(4 * step), "i"(5 * step), \
                         "i"(6 * step), "i"(7 * step)                                                       \
                       : "memory", TIDEMILL_LOW_REGISTERS);                                                 \
    }                                                                                                       \
    __asm__ volatile("vzeroupper" ::: TIDEMILL_LOW_REGISTERS);                                              \
  }

TIDEMILL_READ(read_256, "vmovdqa", "%%ymm", 32)
TIDEMILL_READ(read_512, "vmovdqa64", "%%zmm", 64)

#elif defined(__aarch64__)

#define TIDEMILL_TEN(head, tail)                                                                                  \
  head "v0" tail head "v1" tail head "v2" tail head "v3" tail head "v4" tail head "v5" tail head "v6" tail head "v7" \
  tail head "v16" tail head "v17" tail
#define TIDEMILL_REGISTERS "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v16", "v17", "v18", "v19"

#define TIDEMILL_CHAINS(name, before, head, tail)                                                        \
  void name() {                                                                                          \
    __asm__ volatile("movi v18.16b, #0\n\tmovi v19.16b, #0" ::: TIDEMILL_REGISTERS);                     \
    for (int i = 0; i < kRounds; ++i) __asm__ volatile(before TIDEMILL_TEN(head, tail)::: TIDEMILL_REGISTERS); \
  }

TIDEMILL_CHAINS(fma_neon, "", "fmla ", ".4s, v18.4s, v19.4s\n\t")
TIDEMILL_CHAINS(bytes_neon, "", "smlal ", ".8h, v18.8b, v19.8b\n\t")
TIDEMILL_CHAINS(dot_neon, ".arch armv8.2-a+dotprod\n\t", "sdot ", ".4s, v18.16b, v19.16b\n\t")

#endif

constexpr double kCalls = 2.0 * kRounds * kChains;  // two operations per lane
constexpr double kTileOperations = 2.0 * kTileRounds * 6 * (16 * 16 * 64);

}  // namespace

RoofLoops roof_loops(std::string_view isa) {
#if defined(__x86_64__)
  if (isa == "amx") return {"vfmadd231ps zmm", "tdpbssd", 16 * kCalls, kTileOperations, fma_512, tiles_amx, read_512};
  if (isa.starts_with("avx512")) {
    return {"vfmadd231ps zmm", "vpdpbusd zmm", 16 * kCalls, 64 * kCalls, fma_512, dot_512, read_512};
  }
  if (isa.starts_with("avx2")) {
    return {"vfmadd231ps ymm", "vpmaddubsw ymm", 8 * kCalls, 32 * kCalls, fma_256, bytes_256, read_256};
  }
#elif defined(__aarch64__)
  if (isa == "neon-dot") return {"fmla", "sdot", 4 * kCalls, 16 * kCalls, fma_neon, dot_neon, read_plain};
  if (isa.starts_with("neon")) return {"fmla", "smlal", 4 * kCalls, 8 * kCalls, fma_neon, bytes_neon, read_plain};
#endif
  return {"4 floats", "8 integers of 16 bits", 4 * kCalls, 8 * kCalls, multiply_plain<F4>, multiply_plain<I8>,
          read_plain};
}

}  // namespace tidemill
