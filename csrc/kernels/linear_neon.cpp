// Linear kernels for every 64-bit ARM processor (ARMv8.0).
#include "kernels/linear_neon_impl.h"

namespace tidemill {
namespace {

// Multiplies bytes into int16 sums of as many quads as they hold (8 products of at most 31 * 127, 4 of at most 63 * 127,
// 2 of at most 128 * 127), and widens those.
struct WideningProducts {
  template <Layout L>
  static constexpr int kChain = L == Layout::kQ8 || L == Layout::kQ4Table ? 2 : kShape<L>.bits == 6 ? 4 : 8;

  template <Layout L, int R, int Begin, int End>
  static inline void add(const std::uint8_t* group, int b, const Activations<R>& x, int32x4_t (&sum)[R]) {
    constexpr int kLength = kChain<L> < End - Begin ? kChain<L> : End - Begin;
    repeat<(End - Begin) / kLength>([&](auto chain) __attribute__((always_inline)) {
      int16x8_t left[R], right[R];  // columns 0 and 1, 2 and 3; four k each
      repeat<kLength>([&](auto i) __attribute__((always_inline)) {
        constexpr int kQuad = Begin + chain * kLength + i;
        const int8x16_t codes = codes_at<L>(group, b, kQuad);
        repeat<R>([&](auto r) __attribute__((always_inline)) {
          constexpr int kWord = kQuad * R + r;
          const int8x16_t quad = vreinterpretq_s8_s32(vdupq_laneq_s32(x.words[kWord / 4], kWord % 4));
          if constexpr (i == 0) {
            left[r] = vmull_s8(vget_low_s8(codes), vget_low_s8(quad));
            right[r] = vmull_high_s8(codes, quad);
          } else {
            left[r] = vmlal_s8(left[r], vget_low_s8(codes), vget_low_s8(quad));
            right[r] = vmlal_high_s8(right[r], codes, quad);
          }
        });
      });
      for (int r = 0; r < R; ++r) {
        sum[r] = vaddq_s32(sum[r], vpaddq_s32(vpaddlq_s16(left[r]), vpaddlq_s16(right[r])));
      }
    });
  }
};

using Neon = NeonKernels<WideningProducts>;

}  // namespace

const LinearKernels& linear_kernels_neon() {
  static constexpr LinearKernels kernels = {"neon", quantize_groups<Neon>, linear_quantized<Neon>, linear_float<Neon>};
  return kernels;
}

}  // namespace tidemill
