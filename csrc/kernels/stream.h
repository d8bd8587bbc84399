// Fetching weights ahead of their use, where a first pass over them brings them in.
//
// A processor keeps some 16 lines of its first-level cache on their way, and some 48 of its second. So near ones are asked
// for into the first, and those of the next 8 KiB into the second: from memory, or a last-level cache that is slow, that
// gives half as much again as near ones alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tidemill {

inline constexpr std::size_t kFarAhead = 8192;  // bytes

// Asks for the `Bytes` bytes that lie `Near` bytes past w, and for as many that lie `Far` past it.
template <std::size_t Bytes, std::size_t Near, std::size_t Far = kFarAhead>
inline __attribute__((always_inline)) void fetch_ahead(const std::uint8_t* w) {
  constexpr std::size_t kLine = 64;
  [w]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
    (__builtin_prefetch(w + Near + kLine * I), ...);
    (__builtin_prefetch(w + Far + kLine * I, 0, 2), ...);  // into the second level
  }
  (std::make_index_sequence<(Bytes + kLine - 1) / kLine>());
}

}  // namespace tidemill
