// The table of vector kernels of one instruction set: S (see simd.h).
#pragma once
#include "activation_impl.h"
#include "attention_stages.h"
#include "glu_impl.h"
#include "lora_impl.h"
#include "norm_impl.h"
#include "rope_impl.h"
#include "sampler_impl.h"
#include "vector.h"

namespace tidemill {

template <class S>
constexpr VectorKernels vector_kernels() {
  return {S::kName,
          rms_norm<S>,
          layer_norm<S>,
          silu_glu<S>,
          gelu_tanh_glu<S>,
          clamped_glu<S>,
          {silu_row<S>, gelu_tanh_row<S>, gelu_row<S>, relu_row<S>},
          softmax_row<S>,
          add_rows<S>,
          scale_row<S>,
          sigmoid_gate_row<S>,
          soft_cap<S>,
          rope_head<S>,
          {attention_kernels<S, F16Element>(), attention_kernels<S, F32Element>(), attention_kernels<S, Q8Element>(),
           attention_kernels<S, Q4Element>()},
          sampler_kernels<S>(),
          lora_kernels<S>()};
}

}  // namespace tidemill
