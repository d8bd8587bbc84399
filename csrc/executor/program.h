// A lowered graph: a flat list of instructions over the slots of an arena.
//
// A slot holds one value at a time, either as float rows or as quantised rows; which values share a slot was decided
// from their lifetimes when the graph was lowered. An index of -1 means "none".
#pragma once
#include <cstdint>
#include <variant>
#include <vector>

#include "kv_pool.h"

namespace tidemill {

inline constexpr std::int32_t kNone = -1;

// What the rows of a value stand for: the step's tokens, or the positions drawn from.
enum class RowsOf : std::uint8_t { kTokens, kOutputs };

struct Slot {
  RowsOf rows;
  std::int32_t float_width;      // widest float value it holds, 0: none
  std::int32_t quantized_width;  // widest quantised value it holds, 0: none
};

enum class EmbedBy : std::uint8_t { kToken, kPosition, kNone };

// Row of the table: token or position of each row, or nothing, + offset.
struct EmbedOp {
  std::int32_t table, out, width;
  EmbedBy by = EmbedBy::kToken;
  std::int32_t offset = 0;
};

struct NormOp {
  std::int32_t x, weight;
  float eps;
  RowsOf rows;
  std::int32_t width, heads;        // each of `heads` equal parts of a row is normed by itself
  std::int32_t out, out_quantized;  // either or both
};

struct LayerNormOp {
  std::int32_t x, weight, bias;
  float eps;
  RowsOf rows;
  std::int32_t width;
  std::int32_t out, out_quantized;  // either or both
};

enum class PlainActivation : std::uint8_t { kSilu, kGeluTanh, kGelu, kRelu };

struct ActivateOp {
  PlainActivation activation;
  std::int32_t x;
  RowsOf rows;
  std::int32_t width;
  std::int32_t out, out_quantized;  // either or both
};

enum class Activation : std::uint8_t { kSilu, kGeluTanh, kClamped };

// gate and up as two values, or side by side in one (up is none).
struct GluOp {
  Activation activation;
  std::int32_t gate, up;
  RowsOf rows;
  std::int32_t width;
  std::int32_t out, out_quantized;  // either or both
};

struct QuantizeOp {
  std::int32_t x;
  RowsOf rows;
  std::int32_t width, out;
};

struct LinearPart {
  std::int32_t matrix, column, bias;
  bool quantized;              // multiplies the quantised input
  std::int32_t target = kNone;  // what adapters know it by; none: they never change it
};

struct LinearOp {
  std::int32_t x, x_quantized;
  RowsOf rows;
  std::int32_t in_width, out, out_width, residual;
  std::vector<LinearPart> parts;
};

struct RopeOp {
  std::int32_t x, heads, head_dim, rope, out;
};

// k and v as own values, or q | k | v side by side in q (k and v are none).
struct AttentionOp {
  std::int32_t q, k, v, heads, group, layer, rope;
  float scale;
  std::int32_t window;  // 0: none
  float soft_cap;       // 0: none
  std::int32_t sinks;   // vector of heads, or none
  std::int32_t out;
  bool causal = true;
};

struct ExpertWeights {
  std::int32_t first;  // matrix of expert 0; the others follow
  bool quantized;      // multiplies quantised rows
  std::int32_t bias;   // vector with the outputs of all experts, or none
};

// Mixture of experts. The scratch slots have a row per token and chosen expert, `chosen` to each of the slot's rows.
struct MoeOp {
  std::int32_t x, scores, width, inner, experts, chosen;
  bool normalized;
  Activation activation;
  float alpha, limit;  // clamped activation only
  float scale;
  ExpertWeights gate, up, down;
  std::int32_t rows, rows_quantized;      // scratch: inputs, later outputs, of `width`; quantised inputs or none
  std::int32_t hidden, hidden_quantized;  // scratch: gate | up, each of `inner` padded; quantised products or none
  std::int32_t out;
};

struct AddOp {
  std::int32_t a, b;
  RowsOf rows;
  std::int32_t width, out;
};

struct ScaleOp {
  std::int32_t x;
  float factor;
  RowsOf rows;
  std::int32_t width, out;
};

// Each row by a gate of its own, the one value of the gate's row.
struct SigmoidGateOp {
  std::int32_t x, gate;
  RowsOf rows;
  std::int32_t width, out;
};

struct SoftCapOp {
  std::int32_t x;
  float cap;
  RowsOf rows;
  std::int32_t width, out;
};

struct SelectOp {
  std::int32_t x, width, out;
};

enum class PoolMode : std::uint8_t { kMean, kFirst, kLast };

// One row for each row of the plan with an output.
struct PoolOp {
  PoolMode mode;
  std::int32_t x, width, out;
};

using Instruction =
    std::variant<EmbedOp, NormOp, LayerNormOp, GluOp, ActivateOp, QuantizeOp, LinearOp, RopeOp, AttentionOp, MoeOp,
                 AddOp, ScaleOp, SigmoidGateOp, SoftCapOp, SelectOp, PoolOp>;

// A weight [outputs, inputs] that adapters may change.
struct LoraTarget {
  std::int32_t inputs, outputs;
};

struct Program {
  std::vector<Slot> slots;
  std::vector<Instruction> instructions;
  std::vector<LoraTarget> targets;
  std::vector<KvShape> groups;
  std::int32_t logits = kNone;  // slot of [outputs, vocab], or of the vectors of a program that pools
  std::int32_t vocab = 0;
  std::int32_t vector_width = 0;  // above 0: the program pools, and draws nothing
  bool whole = false;             // a sequence has to be computed in one step
  std::int32_t positions = 0;     // of the smallest table of learned positions, 0: there is none

  std::int32_t result_width() const { return vector_width > 0 ? vector_width : vocab; }

  // Widest value that is normed or gated into quantised rows (scratch of one panel).
  std::int32_t panel_width() const;
  std::int32_t largest_head_dim() const;
};

}  // namespace tidemill
