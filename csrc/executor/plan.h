// One step as the executor sees it, and the check that it keeps the contract.
#pragma once
#include <cstdint>
#include <vector>

#include "../kernels/sampler.h"
#include "adapters.h"
#include "program.h"

namespace tidemill {

// Stands in a block table where a block was given back.
inline constexpr std::int32_t kNoBlock = -1;

struct StepRow {
  std::vector<std::int32_t> tokens;
  std::int64_t start = 0;
  std::vector<std::vector<std::int32_t>> tables;  // one per KV group
  std::int32_t outputs = 0;
  std::int64_t adapter = 0;  // 0: none
  bool draws = false;  // the outputs are draws, with these options
  SamplingParameters sampling;

  std::int32_t size() const { return static_cast<std::int32_t>(tokens.size()); }
};

struct StepPlan {
  std::vector<StepRow> rows;

  std::int32_t tokens() const;
  std::int32_t outputs() const;
};

// Finds the first violation of the contract; throws std::invalid_argument that names row and field.
class PlanCheck {
 public:
  PlanCheck(const Program& program, const std::vector<KvPool>& pools, const Adapters& adapters);
  void check(const StepPlan& plan);

 private:
  void check_row(std::size_t index, const StepRow& row);
  void check_kind(std::size_t index, const StepRow& row);
  void check_table(std::size_t index, const StepRow& row, std::size_t group);

  const Program& program_;
  const std::vector<KvPool>& pools_;
  const Adapters& adapters_;
  std::vector<std::vector<std::uint64_t>> written_;  // per group and block: the check in which a row writes it
  std::uint64_t round_ = 0;
};

}  // namespace tidemill
