// How the kernels with vectors of 16 floats write the outputs of one row of one tile.
//
// For linear_avx512.cpp and linear_amx.cpp: everything is in an anonymous namespace, and compiled for AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace tidemill {
namespace {

inline __mmask16 first_columns(int columns) { return static_cast<__mmask16>((1u << columns) - 1u); }

struct Avx512Store {
  static __m512 value(const float* acc, __mmask16 mask, const float* bias, const float* residual) {
    __m512 value = _mm512_load_ps(acc);
    if (bias != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, bias));
    if (residual != nullptr) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, residual));
    return value;
  }

  static void store_row(const float* acc, std::int32_t columns, float* out, const float* bias, const float* residual) {
    const __mmask16 mask = first_columns(columns);
    _mm512_mask_storeu_ps(out, mask, value(acc, mask, bias, residual));
  }
};

// Past the caches. Ends with `finish`, before anybody reads what was written.
struct Avx512PastCaches {
  static void store_row(const float* acc, std::int32_t columns, float* out, const float* bias, const float* residual) {
    if (columns < 16 || reinterpret_cast<std::uintptr_t>(out) % 64 != 0) {
      return Avx512Store::store_row(acc, columns, out, bias, residual);
    }
    _mm512_stream_ps(out, Avx512Store::value(acc, 0xffff, bias, residual));
  }

  static void finish() { _mm_sfence(); }
};

}  // namespace
}  // namespace tidemill
