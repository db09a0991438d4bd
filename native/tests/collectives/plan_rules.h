// The rules of engine/plan.h that one rank's plan must follow while it runs.
#pragma once

#include <cstddef>
#include <string>

#include "tests/collectives/plan_state.h"

namespace bluecomm::test {

// Checks the plan of one rank. All functions throw RuleBroken.
class PlanRules {
 public:
  explicit PlanRules(const PlanState& state) : state_(state) {}

  void check_start(std::size_t number, const Phase& phase) const;
  void check_send(std::size_t phase, const Send& send) const;
  // Checks the memory of a phase whose gathers are bound.
  void check_memory(const SimulatedPhase& running) const;
  // Checks a message that is accepted for a gather.
  void check_message(const SimulatedPhase& running, const Gather& gather,
                     const InFlight& message) const;
  // Checks that the earlier phases need the memory `dst` no more.
  void check_overwrite(const SimulatedPhase& running, ConstBytes dst) const;

  [[noreturn]] void broken(std::size_t phase, const std::string& rule) const;

 private:
  void check_destination(const SimulatedPhase& running, const Gather& gather) const;
  void check_other(std::size_t phase, const Gather& gather, const Gather& other) const;

  const PlanState& state_;
};

}  // namespace bluecomm::test
