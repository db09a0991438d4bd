#include "engine/progress.h"

#include <thread>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

// Work whose polls never change anything; other threads end it.
class QuietWork final : public Work {
 public:
  bool poll() override {
    ++(ended ? polls_after_end : polls);
    return false;
  }
  bool outstanding() const override { return true; }
  std::uint64_t completions() const override { return ended ? 1 : 0; }
  Progress::Clock::time_point next_timer() const override {
    return Progress::Clock::time_point::max();
  }
  std::span<const int> wait_fds() const override { return {}; }
  bool prepare_sleep() override { return true; }
  void finish_sleep() override {}

  int polls = 0;
  int polls_after_end = 0;
  bool ended = false;
};

TEST(progress, a_completion_by_another_thread_ends_the_wait) {
  QuietWork work;
  Progress progress(work, std::chrono::microseconds{0});
  progress.set_yield(std::chrono::seconds{1});
  std::thread visitor([&] {
    while (progress.with_lock([&] { return work.polls; }) < 2)
      std::this_thread::yield();
    progress.run([&] { work.ended = true; });
  });
  CHECK(progress.drive_until([&] { return work.ended; },
                             Progress::Clock::now() + kDeadline, {}));
  visitor.join();
  // At most the poll after which the end was noticed.
  CHECK(work.polls_after_end <= 1);
}

}  // namespace
}  // namespace bluecomm::test
