// Plans and results between Python's records and the executor's.
#pragma once
#include <nanobind/nanobind.h>

#include <span>

#include "../executor/plan.h"

namespace tidemill {

// A sequence of tidemill.core.step.PlanRow; throws std::invalid_argument that names row and field.
StepPlan plan_from_python(nanobind::handle rows);

// Per row: (tokens, None), or (tokens, ((token, logprob, ((id, logprob), ...)), ...)) where log-probabilities were asked for.
nanobind::list draws_to_python(const StepPlan& plan, std::span<const Draw> draws);

}  // namespace tidemill
