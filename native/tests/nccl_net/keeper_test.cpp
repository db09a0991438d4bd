#include "nccl_net/keeper.h"

#include <atomic>
#include <stdexcept>

#include "tests/check.h"
#include "tests/nccl_net/actors.h"

namespace bluecomm::nccl_net {
namespace {

class Counting final : public Kept {
 public:
  explicit Counting(bool throws) : throws_(throws) {}
  void keep(Clock::time_point) override {
    ++times;
    if (throws_) throw std::runtime_error("no memory, say");
  }
  void abandon() noexcept override {}

  std::atomic<int> times = 0;

 private:
  const bool throws_;
};

TEST(net_keeper, what_fails_is_tried_again_and_holds_up_nobody) {
  const auto failing = make_kept<Counting>(true);
  const auto other = make_kept<Counting>(false);
  test::spin_until("two beats",
                   [&] { return failing->times >= 2 && other->times >= 2; });
}

}  // namespace
}  // namespace bluecomm::nccl_net
