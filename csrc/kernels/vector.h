// The vector kernels of one instruction set, beside the linear layers: everything else a step computes.
//
// All of them are row-wise or (token, head)-wise: a result never depends on which other rows a call contains.
#pragma once
#include "attention.h"
#include "lora.h"
#include "sampler.h"

namespace tidemill {

// cos and sin of the rotated dimensions, [position][half] each.
struct RopeView {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int32_t half = 0;  // rotated dimensions / 2

  explicit operator bool() const { return cos != nullptr; }
};

struct VectorKernels {
  const char* isa;

  // out = x / sqrt(mean(x^2) + eps) * weight, for one row of n.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int32_t n, float* out);
  // out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias, for one row of n. out is not x.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, std::int32_t n, float* out);
  // out = gate / (1 + exp(-gate)) * up, for one row of n.
  void (*silu_glu)(const float* gate, const float* up, std::int32_t n, float* out);
  // out = gate / 2 * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 gate^3))) * up, for one row of n.
  void (*gelu_tanh_glu)(const float* gate, const float* up, std::int32_t n, float* out);
  // out = (u + 1) * g / (1 + exp(-alpha * g)), g = min(gate, limit), u = up within [-limit, limit], for one row of n.
  void (*clamped_glu)(const float* gate, const float* up, std::int32_t n, float alpha, float limit, float* out);
  // out = activation(x), for one row of n, by PlainActivation (executor/program.h): silu, gelu_tanh, gelu, relu.
  void (*activate[4])(const float* x, std::int32_t n, float* out);
  // out = exp(x - max x) / sum of those, for one row of n.
  void (*softmax)(const float* x, std::int32_t n, float* out);
  void (*add)(const float* a, const float* b, std::int32_t n, float* out);
  void (*scale)(const float* x, float factor, std::int32_t n, float* out);
  // out = x / (1 + exp(-gate)), for one row of n.
  void (*sigmoid_gate)(const float* x, float gate, std::int32_t n, float* out);
  // out = cap * tanh(x / cap)
  void (*soft_cap)(const float* x, float cap, std::int32_t n, float* out);
  // Rotates one head of head_dim values: dimension i with i + half; the rest is copied. out may be x.
  void (*rope)(const float* x, std::int32_t head_dim, const float* cos, const float* sin, std::int32_t half,
               float* out);
  AttentionKernels attention[kKvFormats];  // by KvFormat
  SamplerKernels sampler;
  LoraKernels lora;
};

const VectorKernels& vector_kernels_portable();
#if defined(__x86_64__)
const VectorKernels& vector_kernels_avx2();
const VectorKernels& vector_kernels_avx512();
#elif defined(__aarch64__)
const VectorKernels& vector_kernels_neon();
#endif

}  // namespace tidemill
