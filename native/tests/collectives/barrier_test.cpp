#include "tests/check.h"
#include "tests/collectives/simulator.h"

namespace bluecomm::test {
namespace {

TEST(barrier, does_not_complete_before_all_have_started) {
  for (int n : {1, 2, 3, 5, 8, 17}) {
    for (int late = 0; late < n; ++late) {
      SimulatedWorld world(one_machine(n));
      for (int i = 0; i < n; ++i) world[i].call.kind = Kind::kBarrier;
      world.plan();
      bool waited = false;
      world.run(static_cast<unsigned>(late), late, [&] {
        waited = true;
        for (int i = 0; i < n; ++i) CHECK(!world.done(i));
      });
      CHECK(waited);
    }
  }
}

TEST(barrier, takes_a_logarithmic_number_of_steps) {
  SimulatedWorld world(one_machine(17));
  for (int i = 0; i < 17; ++i) world[i].call.kind = Kind::kBarrier;
  world.plan();
  for (int i = 0; i < 17; ++i) CHECK_EQ(world[i].plan.phases.size(), 5u);
}

}  // namespace
}  // namespace bluecomm::test
