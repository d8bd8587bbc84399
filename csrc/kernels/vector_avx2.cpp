#if defined(__x86_64__)
#include "vector_impl.h"

namespace tidemill {

const VectorKernels& vector_kernels_avx2() {
  static constexpr VectorKernels kernels = vector_kernels<simd::Avx2>();
  return kernels;
}

}  // namespace tidemill
#endif
