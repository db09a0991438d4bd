#include "nccl_net/housekeeper.h"

#include <atomic>
#include <stdexcept>

#include "tests/check.h"
#include "tests/nccl_net/test_ranks.h"

namespace bluecomm::nccl_net {
namespace {

class Counting final : public Maintained {
 public:
  explicit Counting(bool throws) : throws_(throws) {}
  void maintain(Clock::time_point) override {
    ++times;
    if (throws_) throw std::runtime_error("no memory, say");
  }
  void abandon() noexcept override {}

  std::atomic<int> times = 0;

 private:
  const bool throws_;
};

TEST(nccl_net_housekeeper, a_failing_object_is_retried_and_delays_no_other) {
  const auto failing = make_maintained<Counting>(true);
  const auto other = make_maintained<Counting>(false);
  test::spin_until("two beats",
                   [&] { return failing->times >= 2 && other->times >= 2; });
}

}  // namespace
}  // namespace bluecomm::nccl_net
