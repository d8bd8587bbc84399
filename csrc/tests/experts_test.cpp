// Which experts a row chooses, how rows are grouped, and that stacked experts are packed as each by itself.
#include <cmath>
#include <cstring>
#include <vector>

#include "executor/expert_groups.h"
#include "executor/weights.h"
#include "tests/check.h"

using namespace tidemill;

namespace {

using Numbers = std::vector<std::int32_t>;

Numbers best(const std::vector<float>& scores, std::int32_t chosen) {
  Numbers out(static_cast<std::size_t>(chosen), -1);
  choose_best(scores.data(), static_cast<std::int32_t>(scores.size()), chosen, out.data());
  return out;
}

void the_best_are_chosen_and_of_equals_the_first() {
  CHECK((best({1, 5, 2, 4, 3}, 2) == Numbers{1, 3}));
  CHECK((best({1, 5, 2, 4, 3}, 5) == Numbers{0, 1, 2, 3, 4}));
  CHECK((best({2, 2, 2, 2}, 2) == Numbers{0, 1}));
  CHECK((best({2, 3, 2, 3, 3}, 2) == Numbers{1, 3}));
  CHECK((best({1, 2, 2, 9}, 2) == Numbers{1, 3}));
  CHECK((best({0.0f, -0.0f}, 1) == Numbers{0}));
}

void nan_scores_still_choose_experts_there_are() {
  const float nan = std::nanf("");
  CHECK((best({nan, nan, nan}, 2) == Numbers{0, 1}));
  for (const std::int32_t expert : best({1, nan, 3, nan}, 3)) CHECK(expert >= 0 && expert < 4);
}

// The example of expert_groups.h.
void rows_are_grouped_by_expert_in_the_order_of_tokens() {
  ExpertGroups groups;
  groups.reset(3, 2);
  const std::int32_t choices[3][2] = {{1, 4}, {0, 4}, {1, 2}};
  for (std::int32_t token = 0; token < 3; ++token) std::memcpy(groups.choices(token), choices[token], 8);
  groups.group(6);
  Numbers tokens;
  for (std::int32_t row = 0; row < groups.rows(); ++row) tokens.push_back(groups.token(row));
  CHECK((tokens == Numbers{1, 0, 2, 2, 0, 1}));
  const std::int32_t expected[4][3] = {{0, 0, 1}, {1, 1, 3}, {2, 3, 4}, {4, 4, 6}};
  CHECK(groups.groups().size() == 4);
  for (std::size_t g = 0; g < 4; ++g) {
    const ExpertRows& group = groups.groups()[g];
    CHECK(group.expert == expected[g][0] && group.begin == expected[g][1] && group.end == expected[g][2]);
  }
  CHECK(groups.places(0)[0] == 1 && groups.places(0)[1] == 4);
  CHECK(groups.places(2)[0] == 2 && groups.places(2)[1] == 3);
}

void panels_never_hold_rows_of_two_experts() {
  ExpertGroups groups;
  groups.reset(11, 1);
  for (std::int32_t token = 0; token < 11; ++token) *groups.choices(token) = token < 6 ? 2 : 0;
  groups.group(3);
  const std::int32_t expected[4][3] = {{0, 0, 4}, {0, 4, 5}, {2, 5, 9}, {2, 9, 11}};
  CHECK(groups.panels().size() == 4);
  for (std::size_t p = 0; p < 4; ++p) {
    const ExpertRows& panel = groups.panels()[p];
    CHECK(panel.expert == expected[p][0] && panel.begin == expected[p][1] && panel.end == expected[p][2]);
  }
}

// 19 outputs: the last tile of an expert is partly empty, and no tile has outputs of two experts.
void stacked_experts_are_packed_as_each_by_itself() {
  constexpr std::int32_t kExperts = 3, kN = 19, kK = 5;
  std::vector<float> rows(kExperts * kN * kK);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(rows.data());
  ThreadPool pool(2);
  Weights stacked, single;
  const std::int32_t first = stacked.add_matrices(FileFormat::kF32, kExperts, kN, kK, bytes, false, pool);
  CHECK(first == 0);
  for (std::int32_t expert = 0; expert < kExperts; ++expert) {
    const auto offset = static_cast<std::size_t>(expert * kN * kK) * sizeof(float);
    const PackedMatrix& one = single.matrix(single.add_matrices(FileFormat::kF32, 1, kN, kK, bytes + offset, false, pool));
    const PackedMatrix& other = stacked.matrix(first + expert);
    CHECK(reinterpret_cast<std::uintptr_t>(other.data) % 64 == 0);
    CHECK(one.bytes() == other.bytes() && std::memcmp(one.data, other.data, one.bytes()) == 0);
  }
  CHECK(stacked.packed_bytes() == single.packed_bytes());
}

}  // namespace

int main() {
  the_best_are_chosen_and_of_equals_the_first();
  nan_scores_still_choose_experts_there_are();
  rows_are_grouped_by_expert_in_the_order_of_tokens();
  panels_never_hold_rows_of_two_experts();
  stacked_experts_are_packed_as_each_by_itself();
  return test::finish("experts");
}
