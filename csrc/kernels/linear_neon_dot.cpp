// Linear kernels for 64-bit ARM with the dot-product instructions of ARMv8.2 (FEAT_DotProd).
//
// Keep to intrinsics and the templates of linear_neon_impl.h here: an inline function of a shared header that the compiler
// does not inline would be exported with these instructions in it (the test isa_leak_neon_dot looks for that).
#include "kernels/linear_neon_impl.h"

namespace tidemill {
namespace {

// One instruction multiplies a quad of k of four columns by the quad of one row, and adds it to int32 sums.
struct DotProducts {
  template <Layout L, int R, int Begin, int End>
  static inline void add(const std::uint8_t* group, int b, const Activations<R>& x, int32x4_t (&sum)[R]) {
    repeat<End - Begin>([&](auto i) __attribute__((always_inline)) {
      constexpr int kQuad = Begin + i;
      const int8x16_t codes = codes_at<L>(group, b, kQuad);
      repeat<R>([&](auto r) __attribute__((always_inline)) {
        constexpr int kWord = kQuad * R + r;
        sum[r] = vdotq_laneq_s32(sum[r], codes, vreinterpretq_s8_s32(x.words[kWord / 4]), kWord % 4);
      });
    });
  }
};

using NeonDot = NeonKernels<DotProducts>;

}  // namespace

const LinearKernels& linear_kernels_neon_dot() {
  static constexpr LinearKernels kernels = {"neon-dot", quantize_groups<NeonDot>, linear_quantized<NeonDot>,
                                            linear_float<NeonDot>};
  return kernels;
}

}  // namespace tidemill
