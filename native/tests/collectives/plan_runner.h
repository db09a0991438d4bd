// Executes the plan of one rank in the simulator.
#pragma once

#include <cstddef>
#include <random>
#include <string>

#include "tests/collectives/plan_rules.h"
#include "tests/collectives/plan_state.h"

namespace bluecomm::test {

// What memory holds that must not be read.
inline constexpr std::byte kPoison{0xff};

class PlanRunner {
 public:
  PlanRunner(MemberCall& member, Network& network, std::mt19937& random)
      : state_(member, network), random_(random) {}
  PlanRunner(const PlanRunner&) = delete;
  PlanRunner& operator=(const PlanRunner&) = delete;

  bool done() const { return state_.done(); }
  std::string text() const { return state_.text(); }

  // Does one thing that is possible now. Returns false if nothing is. Throws
  // RuleBroken.
  bool step();

 private:
  std::size_t chunk_length(std::size_t rest);
  bool may_start_phase() const;
  void start_phase();
  void supply();
  void post(std::size_t phase, const Send& send);
  bool bind(SimulatedPhase& running);
  void begin_gathers(const SimulatedPhase& running);
  bool accept(const SimulatedPhase& running, const Gather& gather,
              GatherProgress& progress);
  std::size_t available(const SimulatedPhase& running, const Gather& gather,
                        const GatherProgress& progress) const;
  bool combine_chunk(SimulatedPhase& running, std::size_t index);
  bool write_back(SimulatedPhase& running, std::size_t index);
  bool end_phase();

  PlanState state_;
  const PlanRules rules_{state_};
  std::mt19937& random_;
};

}  // namespace bluecomm::test
