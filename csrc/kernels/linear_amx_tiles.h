// The tile registers of AMX as the linear kernels use them (Intel, Software Developer's Manual 1, chapter 18).
//
// A tile is up to 16 rows of 64 bytes. sums += left . right takes quads of int8: left is [row][k], right [k / 4][column][4].
//
// In assembly: the intrinsics of GCC 12 do not say that a load reads memory, so what a loop has just written there could
// come after it. For linear_amx.cpp alone: everything is in an anonymous namespace.
#pragma once
#include <cstdint>

namespace tidemill {
namespace {

inline constexpr int kTileRows = 16;
inline constexpr int kSums = 0, kOtherSums = 1, kLeft = 2, kRight = 3, kLeftHalf = 4, kRightHalf = 5;  // registers

struct alignas(64) TileShapes {  // the operand of LDTILECFG
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 32, 64, 16, 64};  // by register, as above
  std::uint8_t rows[16] = {16, 16, 16, 8, 16, 4};
};
static_assert(sizeof(TileShapes) == 64);

// Gives this thread's tiles their shapes, until they are released: a thread that uses none is not saved and restored with
// 8 KiB more. No guard object: the code of an exception's way through one would be shared by the linker.
inline void configure_tiles() {
  static constexpr TileShapes shapes;
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}

inline void release_tiles() { __asm__ volatile("tilerelease" ::: "memory"); }

template <int Tile>
inline void load_tile(const void* bytes, std::int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(bytes), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
inline void store_tile_rows(void* bytes, std::int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(bytes), "r"(stride), "i"(Tile) : "memory");
}

template <int Tile>
inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" ::"i"(Tile));
}

template <int Sums, int Left, int Right>
inline void multiply_tiles() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sums), "i"(Left), "i"(Right));
}

}  // namespace
}  // namespace tidemill
