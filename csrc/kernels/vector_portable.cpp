#include "vector_impl.h"

namespace tidemill {

const VectorKernels& vector_kernels_portable() {
  static constexpr VectorKernels kernels = vector_kernels<simd::Portable>();
  return kernels;
}

}  // namespace tidemill
