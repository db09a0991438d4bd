#include "engine/progress.h"

#include <functional>
#include <map>
#include <stdexcept>
#include <thread>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

// Work whose polls never change anything; other threads end it.
class QuietWork final : public Work {
 public:
  bool poll() override {
    ++(ended ? polls_after_end : polls);
    last_poller = std::this_thread::get_id();
    ++polls_by[last_poller];
    return false;
  }
  bool outstanding() const override { return true; }
  std::uint64_t completions() const override { return ended ? 1 : 0; }
  Progress::Clock::time_point next_timer() const override {
    return Progress::Clock::time_point::max();
  }
  std::span<const int> wait_fds() const override { return {}; }
  bool prepare_sleep() override {
    ++sleeps;
    return true;
  }
  void finish_sleep() override {}

  std::map<std::thread::id, int> polls_by;
  std::thread::id last_poller;
  int sleeps = 0;
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

// Waits until `reached`, which is called under the lock, returns true.
void await_locked(Progress& progress, const std::function<bool()>& reached) {
  const auto limit = Progress::Clock::now() + kDeadline;
  while (!progress.with_lock(reached)) {
    if (Progress::Clock::now() > limit) throw std::runtime_error("it does not come");
    std::this_thread::yield();
  }
}

TEST(progress, a_completion_by_another_thread_wakes_the_background_thread) {
  QuietWork work;
  Progress progress(work, std::chrono::microseconds{0});
  const auto limit = Progress::Clock::now() + kDeadline;
  std::thread background(
      [&] { progress.drive_in_background([&] { return work.ended; }, limit); });
  await_locked(progress, [&] { return work.sleeps > 0; });
  progress.run([&] { work.ended = true; });
  background.join();
  CHECK(Progress::Clock::now() < limit);  // it has not slept until then
}

TEST(progress, the_doorbells_close_once_the_background_thread_has_left) {
  QuietWork work;
  Progress progress(work, std::chrono::microseconds{0});
  const auto limit = Progress::Clock::now() + kDeadline;
  bool has_left = false;
  std::thread background([&] {
    progress.drive_in_background([&] { return has_left = work.ended; }, limit);
  });
  await_locked(progress, [&] { return work.sleeps > 0; });
  // As when an engine ends: without the notice of run().
  progress.with_lock([&] { return work.ended = true; });
  progress.close_doorbells();
  CHECK(progress.with_lock([&] { return has_left; }));
  background.join();
  CHECK(Progress::Clock::now() < limit);
}

TEST(progress, the_background_thread_leads_while_no_caller_does) {
  QuietWork work;
  Progress progress(work, std::chrono::microseconds{0});
  progress.start_thread();
  const auto limit = Progress::Clock::now() + kDeadline;
  std::thread background(
      [&] { progress.drive_in_background([&] { return work.ended; }, limit); });
  const auto in_background = background.get_id();
  const auto here = std::this_thread::get_id();
  await_locked(progress, [&] { return work.polls_by[in_background] > 0; });

  int before = 0;
  const auto has_led_again = [&] { return work.polls_by[in_background] > before; };
  for (int round = 1; round <= 2; ++round) {
    const auto done = [&] {
      before = work.polls_by[in_background];
      return work.polls_by[here] >= round;
    };
    CHECK(progress.drive_until(done, limit, {}));
    // No event wakes it, so the caller that leaves must.
    await_locked(progress, has_led_again);
  }

  progress.suspend();
  progress.with_lock([&] { return before = work.polls_by[in_background]; });
  progress.resume();
  await_locked(progress, has_led_again);

  progress.run([&] { work.ended = true; });
  background.join();
  CHECK(Progress::Clock::now() < limit);
  // Then the progress thread leads.
  await_locked(progress, [&] { return work.last_poller != in_background; });
}

}  // namespace
}  // namespace bluecomm::test
