#include "expert_groups.h"

#include <algorithm>

namespace tidemill {

void choose_best(const float* scores, std::int32_t experts, std::int32_t chosen, std::int32_t* out) {
  // Insertion into the best so far; a later expert passes only those with a lower score.
  std::int32_t count = 0;
  for (std::int32_t expert = 0; expert < experts; ++expert) {
    std::int32_t at = count;
    while (at > 0 && scores[expert] > scores[out[at - 1]]) --at;
    if (at == chosen) continue;
    count = std::min(count + 1, chosen);
    for (std::int32_t i = count - 1; i > at; --i) out[i] = out[i - 1];
    out[at] = expert;
  }
  std::sort(out, out + chosen);
}

void ExpertGroups::reset(std::int32_t tokens, std::int32_t chosen) {
  chosen_ = chosen;
  const std::size_t rows = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(chosen);
  choices_.resize(rows);
  shares_.resize(rows);
  places_.resize(rows);
  tokens_.resize(rows);
}

void ExpertGroups::group(std::int32_t experts) {
  next_.assign(static_cast<std::size_t>(experts), 0);
  for (const std::int32_t expert : choices_) ++next_[static_cast<std::size_t>(expert)];
  groups_.clear();
  panels_.clear();
  std::int32_t begin = 0;
  for (std::int32_t expert = 0; expert < experts; ++expert) {
    std::int32_t& next = next_[static_cast<std::size_t>(expert)];
    const std::int32_t end = begin + next;
    if (begin < end) groups_.push_back({expert, begin, end});
    for (std::int32_t row = begin; row < end; row += kPanelRows) {
      panels_.push_back({expert, row, std::min(row + kPanelRows, end)});
    }
    next = begin;
    begin = end;
  }
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const std::int32_t row = next_[static_cast<std::size_t>(choices_[i])]++;
    places_[i] = row;
    tokens_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(i) / chosen_;
  }
}

}  // namespace tidemill
