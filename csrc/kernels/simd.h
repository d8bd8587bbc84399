// Float lanes in several spellings with one interface: eight in Portable (two 16-byte compiler vectors), Avx2, Neon and
// Avx512Eight, sixteen in Avx512. S::Eight are eight lanes of the same instruction set.
//
// Kernels are templates over one of them, instantiated in vector_<isa>.cpp. Everything here is a static member that is
// always inlined, so that no code compiled for AVX2 can be linked into the portable build. Portable::fma rounds twice,
// the others' once; sums over lanes have another order with sixteen: bits are promised within an instruction set, not
// between them.
#pragma once
#include <cstdint>
#include <cstring>

#include "half.h"
#include "inline.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tidemill::simd {

struct Portable {
  static constexpr const char* kName = "portable";
  static constexpr int kLanes = 8;
  using Eight = Portable;
  typedef float F4 __attribute__((vector_size(16)));
  typedef std::int32_t I4 __attribute__((vector_size(16)));
  struct V {
    F4 lo, hi;
  };
  struct Mask {
    I4 lo, hi;
  };

  static TIDEMILL_INLINE F4 four(float x) { return F4{x, x, x, x}; }
  static TIDEMILL_INLINE V set(float x) { return {four(x), four(x)}; }
  static TIDEMILL_INLINE V zero() { return set(0.0f); }
  static TIDEMILL_INLINE V load(const float* p) {
    V v;
    std::memcpy(&v.lo, p, 16);
    std::memcpy(&v.hi, p + 4, 16);
    return v;
  }
  static TIDEMILL_INLINE void store(float* p, V v) {
    std::memcpy(p, &v.lo, 16);
    std::memcpy(p + 4, &v.hi, 16);
  }
  // The first n lanes; the others are zero (load) or left alone (store).
  static TIDEMILL_INLINE V load_first(const float* p, int n) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, sizeof(float) * static_cast<unsigned>(n));
    return load(lanes);
  }
  static TIDEMILL_INLINE void store_first(float* p, V v, int n) {
    float lanes[kLanes];
    store(lanes, v);
    std::memcpy(p, lanes, sizeof(float) * static_cast<unsigned>(n));
  }
  static TIDEMILL_INLINE V load_half(const std::uint16_t* p) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = half_to_float(p[i]);
    return load(lanes);
  }
  static TIDEMILL_INLINE void store_half(std::uint16_t* p, V v) {
    float lanes[kLanes];
    store(lanes, v);
    for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(lanes[i]);
  }
  // Signed bytes.
  static TIDEMILL_INLINE V load_bytes(const std::uint8_t* p) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(static_cast<std::int8_t>(p[i]));
    return load(lanes);
  }
  // The low and the high halves of bytes, less 8.
  static TIDEMILL_INLINE void load_nibbles(const std::uint8_t* p, V& low, V& high) {
    float lows[kLanes], highs[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      lows[i] = static_cast<float>((p[i] & 15) - 8);
      highs[i] = static_cast<float>((p[i] >> 4) - 8);
    }
    low = load(lows);
    high = load(highs);
  }
  static TIDEMILL_INLINE V add(V a, V b) { return {a.lo + b.lo, a.hi + b.hi}; }
  static TIDEMILL_INLINE V sub(V a, V b) { return {a.lo - b.lo, a.hi - b.hi}; }
  static TIDEMILL_INLINE V mul(V a, V b) { return {a.lo * b.lo, a.hi * b.hi}; }
  static TIDEMILL_INLINE V div(V a, V b) { return {a.lo / b.lo, a.hi / b.hi}; }
  static TIDEMILL_INLINE V fma(V a, V b, V c) { return {a.lo * b.lo + c.lo, a.hi * b.hi + c.hi}; }
  // c - a * b
  static TIDEMILL_INLINE V fnma(V a, V b, V c) { return {c.lo - a.lo * b.lo, c.hi - a.hi * b.hi}; }
  static TIDEMILL_INLINE Mask greater(V a, V b) { return {a.lo > b.lo, a.hi > b.hi}; }
  // not (a < b): true for NaN
  static TIDEMILL_INLINE Mask not_less(V a, V b) { return {~(a.lo < b.lo), ~(a.hi < b.hi)}; }
  static TIDEMILL_INLINE V select(Mask m, V yes, V no) {
    return {m.lo ? yes.lo : no.lo, m.hi ? yes.hi : no.hi};
  }
  static TIDEMILL_INLINE V zero_unless(Mask m, V v) { return select(m, v, zero()); }
  static TIDEMILL_INLINE unsigned bits(Mask m) {
    std::int32_t lanes[kLanes];
    std::memcpy(lanes, &m.lo, 16);
    std::memcpy(lanes + 4, &m.hi, 16);
    unsigned result = 0;
    for (int i = 0; i < kLanes; ++i) result |= (static_cast<std::uint32_t>(lanes[i]) >> 31) << i;
    return result;
  }
  // The second operand if either is NaN, as the AVX instructions do.
  static TIDEMILL_INLINE V max(V a, V b) { return select(greater(a, b), a, b); }
  static TIDEMILL_INLINE V min(V a, V b) { return select(greater(b, a), a, b); }
  // Nearest integer, ties to even, for |x| < 2^22.
  static TIDEMILL_INLINE V round(V x) {
    const F4 magic = four(0x1.8p23f);
    return {(x.lo + magic) - magic, (x.hi + magic) - magic};
  }
  // 2^n for integral n in [-126, 127].
  static TIDEMILL_INLINE V power_of_two(V n) {
    const F4 magic = four(0x1.8p23f);  // leaves n in the low mantissa bits
    V v;
    const F4 lo = n.lo + magic, hi = n.hi + magic;
    I4 a, b;
    std::memcpy(&a, &lo, 16);
    std::memcpy(&b, &hi, 16);
    a = (a + 127) << 23;
    b = (b + 127) << 23;
    std::memcpy(&v.lo, &a, 16);
    std::memcpy(&v.hi, &b, 16);
    return v;
  }
  // v * 2^n for the integer n in the lowest nine bits of `bits`, where m; 0 elsewhere. v and the product are normal.
  static TIDEMILL_INLINE F4 add_exponent(F4 v, F4 bits) {
    typedef std::uint32_t U4 __attribute__((vector_size(16)));
    U4 a, b;
    std::memcpy(&a, &v, 16);
    std::memcpy(&b, &bits, 16);
    a += b << 23;
    std::memcpy(&v, &a, 16);
    return v;
  }
  static TIDEMILL_INLINE V add_exponent(Mask m, V v, V bits) {
    return zero_unless(m, {add_exponent(v.lo, bits.lo), add_exponent(v.hi, bits.hi)});
  }
  // x = mantissa * 2^exponent with mantissa in [0.5, 1), for normal positive x.
  static TIDEMILL_INLINE V split(V x, V& exponent) {
    float mantissas[kLanes], exponents[kLanes];
    store(mantissas, x);
    for (int i = 0; i < kLanes; ++i) {
      std::uint32_t u;
      std::memcpy(&u, &mantissas[i], 4);
      exponents[i] = static_cast<float>(static_cast<std::int32_t>(u >> 23) - 126);
      u = (u & 0x007fffffu) | 0x3f000000u;
      std::memcpy(&mantissas[i], &u, 4);
    }
    exponent = load(exponents);
    return load(mantissas);
  }
  // Lanes added as ((0+4) + (2+6)) + ((1+5) + (3+7)).
  static TIDEMILL_INLINE float sum(V v) {
    const F4 s = v.lo + v.hi;
    return (s[0] + s[2]) + (s[1] + s[3]);
  }
  static TIDEMILL_INLINE float max_lane(V v) {
    float lanes[kLanes];
    store(lanes, v);
    float best = lanes[0];
    for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
    return best;
  }
  // Lane i: the largest lane of rows[i], of at most eight.
  template <int kRows>
  static TIDEMILL_INLINE V row_maxima(const V (&rows)[kRows]) {
    float lanes[kLanes] = {};
    for (int i = 0; i < kRows; ++i) lanes[i] = max_lane(rows[i]);
    return load(lanes);
  }
};

#if defined(__AVX2__)
struct Avx2 {
  static constexpr const char* kName = "avx2";
  static constexpr int kLanes = 8;
  using Eight = Avx2;
  using V = __m256;
  using Mask = __m256;

  static TIDEMILL_INLINE V set(float x) { return _mm256_set1_ps(x); }
  static TIDEMILL_INLINE V zero() { return _mm256_setzero_ps(); }
  static TIDEMILL_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
  static TIDEMILL_INLINE void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static TIDEMILL_INLINE __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static TIDEMILL_INLINE V load_first(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static TIDEMILL_INLINE void store_first(float* p, V v, int n) { _mm256_maskstore_ps(p, first(n), v); }
  static TIDEMILL_INLINE V load_half(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static TIDEMILL_INLINE void store_half(std::uint16_t* p, V v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static TIDEMILL_INLINE V load_bytes(const std::uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static TIDEMILL_INLINE void load_nibbles(const std::uint8_t* p, V& low, V& high) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i eight = _mm256_set1_epi32(8);
    low = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(bytes, _mm256_set1_epi32(15)), eight));
    high = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(bytes, 4), eight));
  }
  static TIDEMILL_INLINE V add(V a, V b) { return _mm256_add_ps(a, b); }
  static TIDEMILL_INLINE V sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static TIDEMILL_INLINE V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static TIDEMILL_INLINE V div(V a, V b) { return _mm256_div_ps(a, b); }
  static TIDEMILL_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static TIDEMILL_INLINE V fnma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
  static TIDEMILL_INLINE Mask greater(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static TIDEMILL_INLINE Mask not_less(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_NLT_UQ); }
  static TIDEMILL_INLINE V select(Mask m, V yes, V no) { return _mm256_blendv_ps(no, yes, m); }
  static TIDEMILL_INLINE V zero_unless(Mask m, V v) { return _mm256_and_ps(m, v); }
  static TIDEMILL_INLINE unsigned bits(Mask m) { return static_cast<unsigned>(_mm256_movemask_ps(m)); }
  static TIDEMILL_INLINE V max(V a, V b) { return _mm256_max_ps(a, b); }
  static TIDEMILL_INLINE V min(V a, V b) { return _mm256_min_ps(a, b); }
  static TIDEMILL_INLINE V round(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static TIDEMILL_INLINE V power_of_two(V n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static TIDEMILL_INLINE V add_exponent(Mask m, V v, V bits) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(bits), 23);
    return zero_unless(m, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), exponent)));
  }
  static TIDEMILL_INLINE V split(V x, V& exponent) {
    const __m256i u = _mm256_castps_si256(x);
    exponent = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(u, 23), _mm256_set1_epi32(126)));
    const __m256i mantissa = _mm256_and_si256(u, _mm256_set1_epi32(0x007fffff));
    return _mm256_castsi256_ps(_mm256_or_si256(mantissa, _mm256_set1_epi32(0x3f000000)));
  }
  static TIDEMILL_INLINE float sum(V v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static TIDEMILL_INLINE float max_lane(V v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
  }
  // Transposes on the way, so that nothing passes through memory lane by lane; missing rows repeat the last.
  template <int kRows>
  static TIDEMILL_INLINE V row_maxima(const V (&rows)[kRows]) {
    const auto pair = [&](int i) {  // (i, i + 1) four times
      const V a = rows[i < kRows ? i : kRows - 1], b = rows[i + 1 < kRows ? i + 1 : kRows - 1];
      return _mm256_castps_pd(max(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
    };
    const auto four = [&](int i) {  // (i, i + 1, i + 2, i + 3) twice
      const __m256d a = pair(i), b = pair(i + 2);
      return max(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    };
    const V low = four(0), high = four(4);
    return max(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
  }
};
#endif

#if defined(__aarch64__)
struct Neon {
  static constexpr const char* kName = "neon";
  static constexpr int kLanes = 8;
  using Eight = Neon;
  struct V {
    float32x4_t lo, hi;
  };
  struct Mask {
    uint32x4_t lo, hi;
  };

  static TIDEMILL_INLINE V set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static TIDEMILL_INLINE V zero() { return set(0.0f); }
  static TIDEMILL_INLINE V load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static TIDEMILL_INLINE void store(float* p, V v) {
    vst1q_f32(p, v.lo);
    vst1q_f32(p + 4, v.hi);
  }
  static TIDEMILL_INLINE V load_first(const float* p, int n) {  // NEON has no masked load
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, sizeof(float) * static_cast<unsigned>(n));
    return load(lanes);
  }
  static TIDEMILL_INLINE void store_first(float* p, V v, int n) {
    float lanes[kLanes];
    store(lanes, v);
    std::memcpy(p, lanes, sizeof(float) * static_cast<unsigned>(n));
  }
  static TIDEMILL_INLINE V load_half(const std::uint16_t* p) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
  static TIDEMILL_INLINE void store_half(std::uint16_t* p, V v) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.lo), v.hi)));
  }
  static TIDEMILL_INLINE V widen(int8x8_t bytes) {
    const int16x8_t wide = vmovl_s8(bytes);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
  }
  static TIDEMILL_INLINE V load_bytes(const std::uint8_t* p) { return widen(vreinterpret_s8_u8(vld1_u8(p))); }
  static TIDEMILL_INLINE void load_nibbles(const std::uint8_t* p, V& low, V& high) {
    const uint8x8_t bytes = vld1_u8(p);
    const int8x8_t eight = vdup_n_s8(8);
    low = widen(vsub_s8(vreinterpret_s8_u8(vand_u8(bytes, vdup_n_u8(15))), eight));
    high = widen(vsub_s8(vreinterpret_s8_u8(vshr_n_u8(bytes, 4)), eight));
  }
  static TIDEMILL_INLINE V add(V a, V b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
  static TIDEMILL_INLINE V sub(V a, V b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
  static TIDEMILL_INLINE V mul(V a, V b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
  static TIDEMILL_INLINE V div(V a, V b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
  static TIDEMILL_INLINE V fma(V a, V b, V c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
  static TIDEMILL_INLINE V fnma(V a, V b, V c) { return {vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)}; }
  static TIDEMILL_INLINE Mask greater(V a, V b) { return {vcgtq_f32(a.lo, b.lo), vcgtq_f32(a.hi, b.hi)}; }
  static TIDEMILL_INLINE Mask not_less(V a, V b) {
    return {vmvnq_u32(vcltq_f32(a.lo, b.lo)), vmvnq_u32(vcltq_f32(a.hi, b.hi))};
  }
  static TIDEMILL_INLINE V select(Mask m, V yes, V no) {
    return {vbslq_f32(m.lo, yes.lo, no.lo), vbslq_f32(m.hi, yes.hi, no.hi)};
  }
  static TIDEMILL_INLINE V zero_unless(Mask m, V v) { return select(m, v, zero()); }
  static TIDEMILL_INLINE unsigned bits(Mask m) {
    const uint32x4_t lo = {1, 2, 4, 8};
    return vaddvq_u32(vorrq_u32(vandq_u32(m.lo, lo), vandq_u32(m.hi, vshlq_n_u32(lo, 4))));
  }
  static TIDEMILL_INLINE V max(V a, V b) { return select(greater(a, b), a, b); }  // vmaxq gives NaN for either
  static TIDEMILL_INLINE V min(V a, V b) { return select(greater(b, a), a, b); }
  static TIDEMILL_INLINE V round(V x) { return {vrndnq_f32(x.lo), vrndnq_f32(x.hi)}; }
  static TIDEMILL_INLINE float32x4_t power_of_two(float32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
  }
  static TIDEMILL_INLINE V power_of_two(V n) { return {power_of_two(n.lo), power_of_two(n.hi)}; }
  static TIDEMILL_INLINE float32x4_t add_exponent(float32x4_t v, float32x4_t bits) {
    const int32x4_t exponent = vshlq_n_s32(vreinterpretq_s32_f32(bits), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(v), exponent));
  }
  static TIDEMILL_INLINE V add_exponent(Mask m, V v, V bits) {
    return zero_unless(m, {add_exponent(v.lo, bits.lo), add_exponent(v.hi, bits.hi)});
  }
  static TIDEMILL_INLINE float32x4_t exponent_of(float32x4_t x) {
    const uint32x4_t biased = vshrq_n_u32(vreinterpretq_u32_f32(x), 23);
    return vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(biased), vdupq_n_s32(126)));
  }
  static TIDEMILL_INLINE float32x4_t mantissa_of(float32x4_t x) {
    return vbslq_f32(vdupq_n_u32(0x007fffff), x, vdupq_n_f32(0.5f));
  }
  static TIDEMILL_INLINE V split(V x, V& exponent) {
    exponent = {exponent_of(x.lo), exponent_of(x.hi)};
    return {mantissa_of(x.lo), mantissa_of(x.hi)};
  }
  static TIDEMILL_INLINE float sum(V v) {
    const float32x4_t s = vaddq_f32(v.lo, v.hi);
    return vpadds_f32(vadd_f32(vget_low_f32(s), vget_high_f32(s)));
  }
  static TIDEMILL_INLINE float max_lane(V v) { return vmaxnmvq_f32(vmaxnmq_f32(v.lo, v.hi)); }
  template <int kRows>
  static TIDEMILL_INLINE V row_maxima(const V (&rows)[kRows]) {
    const auto four = [&](int first) {
      float32x4_t m[4];
      for (int i = 0; i < 4; ++i) {
        const V row = rows[first + i < kRows ? first + i : kRows - 1];
        m[i] = vmaxnmq_f32(row.lo, row.hi);
      }
      return vpmaxnmq_f32(vpmaxnmq_f32(m[0], m[1]), vpmaxnmq_f32(m[2], m[3]));
    };
    return {four(0), four(4)};
  }
};
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
// Not Avx2 itself: templates over that belong to another file.
struct Avx512Eight : Avx2 {
  static constexpr const char* kName = "avx512";
  using Eight = Avx512Eight;
};

struct Avx512 {
  static constexpr const char* kName = "avx512";
  static constexpr int kLanes = 16;
  using Eight = Avx512Eight;
  using V = __m512;
  using Mask = __mmask16;

  static TIDEMILL_INLINE V set(float x) { return _mm512_set1_ps(x); }
  static TIDEMILL_INLINE V zero() { return _mm512_setzero_ps(); }
  static TIDEMILL_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }
  static TIDEMILL_INLINE void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static TIDEMILL_INLINE Mask first(int n) { return static_cast<Mask>((1u << n) - 1u); }
  static TIDEMILL_INLINE V load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static TIDEMILL_INLINE void store_first(float* p, V v, int n) { _mm512_mask_storeu_ps(p, first(n), v); }
  static TIDEMILL_INLINE V load_half(const std::uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static TIDEMILL_INLINE void store_half(std::uint16_t* p, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static TIDEMILL_INLINE V load_bytes(const std::uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static TIDEMILL_INLINE void load_nibbles(const std::uint8_t* p, V& low, V& high) {  // an index reads its low four bits
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    low = _mm512_permutexvar_ps(bytes, values);
    high = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), values);
  }
  static TIDEMILL_INLINE V add(V a, V b) { return _mm512_add_ps(a, b); }
  static TIDEMILL_INLINE V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static TIDEMILL_INLINE V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static TIDEMILL_INLINE V div(V a, V b) { return _mm512_div_ps(a, b); }
  static TIDEMILL_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static TIDEMILL_INLINE V fnma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
  static TIDEMILL_INLINE Mask greater(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static TIDEMILL_INLINE Mask not_less(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
  static TIDEMILL_INLINE V select(Mask m, V yes, V no) { return _mm512_mask_mov_ps(no, m, yes); }
  static TIDEMILL_INLINE V zero_unless(Mask m, V v) { return _mm512_maskz_mov_ps(m, v); }
  static TIDEMILL_INLINE unsigned bits(Mask m) { return m; }
  static TIDEMILL_INLINE V max(V a, V b) { return _mm512_max_ps(a, b); }
  static TIDEMILL_INLINE V min(V a, V b) { return _mm512_min_ps(a, b); }
  static TIDEMILL_INLINE V round(V x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static TIDEMILL_INLINE V times_power_of_two(V x, V n) { return _mm512_scalef_ps(x, n); }
  // 1 / x within two units of the last place, by one step of Newton's method; a division takes as long as 16 products.
  static TIDEMILL_INLINE V reciprocal(V x) {
    const V y = _mm512_rcp14_ps(x);
    return fma(fnma(x, y, set(1.0f)), y, y);
  }
  static TIDEMILL_INLINE V power_of_two(V n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  static TIDEMILL_INLINE V add_exponent(Mask m, V v, V bits) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(bits), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(m, _mm512_castps_si512(v), exponent));
  }
  static TIDEMILL_INLINE V split(V x, V& exponent) {
    const __m512i u = _mm512_castps_si512(x);
    exponent = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srli_epi32(u, 23), _mm512_set1_epi32(126)));
    const __m512i mantissa = _mm512_and_si512(u, _mm512_set1_epi32(0x007fffff));
    return _mm512_castsi512_ps(_mm512_or_si512(mantissa, _mm512_set1_epi32(0x3f000000)));
  }
  // Lanes i and i + 8 first, then as eight.
  static TIDEMILL_INLINE float sum(V v) {
    return Avx2::sum(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
  }
  static TIDEMILL_INLINE float max_lane(V v) {
    return Avx2::max_lane(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
  }
  template <int kRows>
  static TIDEMILL_INLINE Avx2::V row_maxima(const V (&rows)[kRows]) {
    Avx2::V eights[kRows];
    TIDEMILL_UNROLL for (int i = 0; i < kRows; ++i) {
      eights[i] = Avx2::max(_mm512_castps512_ps256(rows[i]), _mm512_extractf32x8_ps(rows[i], 1));
    }
    return Avx2::row_maxima(eights);
  }
};
#endif

// e^x = 2^n (1 + f p) with |f| at most half of ln 2: x = n ln2 + f, degree-6 Taylor polynomial in f.
template <class S>
struct Exponential {
  typename S::V n, f, p;
};

template <class S>
TIDEMILL_INLINE Exponential<S> exponential(typename S::V x) {
  using V = typename S::V;
  const V n = S::round(S::mul(x, S::set(1.44269504f)));
  V f = S::fnma(n, S::set(0.693145752f), x);  // ln 2 in two parts; the first has trailing zeros
  f = S::fnma(n, S::set(1.42860677e-6f), f);
  V p = S::set(1.0f / 720.0f);
  p = S::fma(p, f, S::set(1.0f / 120.0f));
  p = S::fma(p, f, S::set(1.0f / 24.0f));
  p = S::fma(p, f, S::set(1.0f / 6.0f));
  p = S::fma(p, f, S::set(0.5f));
  p = S::fma(p, f, S::set(1.0f));
  return {n, f, p};
}

// x 2^n for whole n of normal powers.
template <class S>
TIDEMILL_INLINE typename S::V times_power_of_two(typename S::V x, typename S::V n) {
  if constexpr (requires { S::times_power_of_two(x, n); }) {
    return S::times_power_of_two(x, n);
  } else {
    return S::mul(x, S::power_of_two(n));
  }
}

// a / b for positive, finite b, within a few units of the last place.
template <class S>
TIDEMILL_INLINE typename S::V near_quotient(typename S::V a, typename S::V b) {
  if constexpr (requires { S::reciprocal(b); }) {
    return S::mul(a, S::reciprocal(b));
  } else {
    return S::div(a, b);
  }
}

// exp(x): relative error below 3e-7; 0 below -87.3, NaN for NaN.
template <class S>
TIDEMILL_INLINE typename S::V exp(typename S::V x) {
  using V = typename S::V;
  const V low = S::set(-87.3f);
  const Exponential<S> e = exponential<S>(S::min(S::set(88.0f), S::max(low, x)));
  const V power = times_power_of_two<S>(S::fma(e.p, e.f, S::set(1.0f)), e.n);
  return S::zero_unless(S::not_less(x, low), power);
}

// e^x for x <= 0, in fewer steps than exp: relative error below 2e-7 where e^x counts (1e-7 |x| beyond -1); exactly 1 for
// 0, 0 below -87.3, NaN for NaN. x log2(e) = n + f with |f| at most half: adding 1.5 * 2^23 rounds it to n and leaves n in
// the lowest bits. 2^f by the minimax polynomial of degree 6 through (0, 1).
template <class S>
TIDEMILL_INLINE typename S::V exp_falling(typename S::V x) {
  using V = typename S::V;
  const V magic = S::set(0x1.8p23f);
  const V log2e = S::set(1.44269504f);
  const V shifted = S::fma(x, log2e, magic);
  const V f = S::fma(x, log2e, S::sub(magic, shifted));
  V p = S::set(1.5353363e-4f);
  p = S::fma(p, f, S::set(1.3398875e-3f));
  p = S::fma(p, f, S::set(9.6184370e-3f));
  p = S::fma(p, f, S::set(5.5503324e-2f));
  p = S::fma(p, f, S::set(2.4022648e-1f));
  p = S::fma(p, f, S::set(6.9314720e-1f));
  p = S::fma(p, f, S::set(1.0f));
  return S::add_exponent(S::not_less(x, S::set(-87.3f)), p, shifted);
}

// tanh(x) = m / (m + 2) with m = e^2x - 1, computed without the 1: relative error below 6e-7, NaN for NaN.
template <class S>
TIDEMILL_INLINE typename S::V tanh(typename S::V x) {
  using V = typename S::V;
  const V clamped = S::min(S::set(20.0f), S::max(S::set(-20.0f), S::add(x, x)));  // beyond, tanh rounds to 1
  const Exponential<S> e = exponential<S>(clamped);
  const V power = S::power_of_two(e.n);
  const V m = S::fma(power, S::mul(e.f, e.p), S::sub(power, S::set(1.0f)));
  return S::div(m, S::add(m, S::set(2.0f)));
}

// ln(x) for normal positive x: x = m 2^e with m in [0.707, 1.414), ln m = 2 atanh((m - 1) / (m + 1)) to the ninth power.
template <class S>
TIDEMILL_INLINE typename S::V log(typename S::V x) {
  using V = typename S::V;
  V e;
  V m = S::split(x, e);
  const V one = S::set(1.0f);
  const auto small = S::greater(S::set(0.70710678f), m);
  m = S::select(small, S::add(m, m), m);
  e = S::sub(e, S::zero_unless(small, one));
  const V s = S::div(S::sub(m, one), S::add(m, one));
  const V s2 = S::mul(s, s);
  V p = S::set(1.0f / 9.0f);
  p = S::fma(p, s2, S::set(1.0f / 7.0f));
  p = S::fma(p, s2, S::set(1.0f / 5.0f));
  p = S::fma(p, s2, S::set(1.0f / 3.0f));
  p = S::mul(S::mul(p, s2), s);
  const V twice = S::add(S::add(s, p), S::add(s, p));
  return S::fma(e, S::set(0.693145752f), S::fma(e, S::set(1.42860677e-6f), twice));
}

// Calls body(offset, lanes) for each vector of n values; the last of an odd size has fewer lanes.
template <class S, class Body>
TIDEMILL_INLINE void for_lanes(int n, Body body) {
  int i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes) body(i, S::kLanes);
  if (i < n) body(i, n - i);
}

// A full or masked load, so that a tail runs the same vector code as the rest.
template <class S>
TIDEMILL_INLINE typename S::V load(const float* p, int lanes) {
  return lanes == S::kLanes ? S::load(p) : S::load_first(p, lanes);
}
template <class S>
TIDEMILL_INLINE void store(float* p, typename S::V v, int lanes) {
  if (lanes == S::kLanes) {
    S::store(p, v);
  } else {
    S::store_first(p, v, lanes);
  }
}

}  // namespace tidemill::simd
