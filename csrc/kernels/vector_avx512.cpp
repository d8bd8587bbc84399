#if defined(__x86_64__)
#include "vector_impl.h"

namespace tidemill {

const VectorKernels& vector_kernels_avx512() {
  static constexpr VectorKernels kernels = vector_kernels<simd::Avx512>();
  return kernels;
}

}  // namespace tidemill
#endif
