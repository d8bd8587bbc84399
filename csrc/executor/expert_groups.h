// Which rows go to which expert in one step of one layer.
//
//   choices    token 0: (1, 4)  token 1: (0, 4)  token 2: (1, 2)        ascending, `chosen` a token
//   grouped    expert 0: t1 | expert 1: t0 t2 | expert 2: t2 | expert 4: t0 t1
//
// A grouped row's result does not depend on its place, so only memory and load hang on the grouping.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "../kernels/linear.h"
#include "program.h"

namespace tidemill {

struct ExpertRows {
  std::int32_t expert, begin, end;  // grouped rows
};

// The `chosen` best of scores [experts], ascending by number; of equal scores the lower number. `out` may not alias.
void choose_best(const float* scores, std::int32_t experts, std::int32_t chosen, std::int32_t* out);

class ExpertGroups {
 public:
  // Room for the choices of a step; keeps nothing.
  void reset(std::int32_t tokens, std::int32_t chosen);
  // Sorts the choices into groups; each group's rows are in the order of tokens.
  void group(std::int32_t experts);

  std::int32_t rows() const { return static_cast<std::int32_t>(choices_.size()); }
  std::int32_t* choices(std::int32_t token) { return choices_.data() + first(token); }
  float* shares(std::int32_t token) { return shares_.data() + first(token); }
  // Grouped row of each of a token's choices.
  const std::int32_t* places(std::int32_t token) const { return places_.data() + first(token); }
  std::int32_t token(std::int32_t row) const { return tokens_[static_cast<std::size_t>(row)]; }
  // Experts with rows, ascending.
  std::span<const ExpertRows> groups() const { return groups_; }
  // Up to kPanelRows consecutive grouped rows of one expert each; together all rows.
  std::span<const ExpertRows> panels() const { return panels_; }

 private:
  std::size_t first(std::int32_t token) const {
    return static_cast<std::size_t>(token) * static_cast<std::size_t>(chosen_);
  }

  std::int32_t chosen_ = 0;
  std::vector<std::int32_t> choices_, places_, tokens_, next_;
  std::vector<float> shares_;
  std::vector<ExpertRows> groups_, panels_;
};

// Grouped rows as quantised rows of their own: each group begins a panel.
inline QuantizedRows expert_view(const QuantizedRows& all, const ExpertRows& group) {
  return {group.end - group.begin, all.k, all.values + quantized_value_bytes(group.begin, all.k),
          all.scales + quantized_scale_bytes(group.begin, all.k) / sizeof(float)};
}

// out[row][column ..] = input[row] W[expert]^T for all grouped rows, one or two weights beside each other.
struct ExpertProduct {
  struct Part {
    ExpertWeights weights;
    std::size_t column;
  };
  std::span<const Part> parts;
  const float* x;
  std::size_t x_stride;
  QuantizedRows x_quantized;
  float* out;
  std::size_t out_stride;
};

// Tiles [begin, end) of the parts of one expert, counted over all parts, for all rows of its group.
struct ExpertTask {
  ExpertRows rows;
  std::int32_t begin, end;
};

}  // namespace tidemill
