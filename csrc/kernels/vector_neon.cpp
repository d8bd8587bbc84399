#if defined(__aarch64__)
#include "vector_impl.h"

namespace tidemill {

const VectorKernels& vector_kernels_neon() {
  static constexpr VectorKernels kernels = vector_kernels<simd::Neon>();
  return kernels;
}

}  // namespace tidemill
#endif
