// Random schedules of the membership protocol. To run more, or one again with its
// story:
//
//   MEMBERSHIP_SCHEDULES=1000000 build/native/tests --filter schedules --limit-s 3600
//   MEMBERSHIP_SEED=4711 build/native/tests --filter schedules
#include <cstdio>
#include <cstdlib>

#include "tests/check.h"
#include "tests/membership/schedule.h"

namespace bluecomm::test {
namespace {

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The protocol has one thread, so that a sanitizer finds in few schedules what it would
// find in many.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSchedules = 500;
#else
constexpr std::uint64_t kSchedules = 10'000;
#endif

void run_schedules(Schedule::Minority minority) {
  const std::uint64_t only = number_from("MEMBERSHIP_SEED", 0);
  const std::uint64_t first = only == 0 ? 1 : only;
  const std::uint64_t count =
      only == 0 ? number_from("MEMBERSHIP_SCHEDULES", kSchedules) : 1;
  long long epochs = 0;
  long long messages = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Schedule schedule(seed, false, minority);
    try {
      schedule.run();
    } catch (const ScheduleBroken& broken) {
      Schedule again(seed, true, minority);
      try {
        again.run();
      } catch (const ScheduleBroken&) {
        std::fputs(again.trace().c_str(), stderr);
      }
      record_failure(__FILE__, __LINE__, broken.what());
      return;
    }
    epochs += schedule.epochs();
    messages += schedule.messages();
  }
  std::printf("%llu schedules, %lld epochs installed, %lld messages\n",
              static_cast<unsigned long long>(count), epochs, messages);
  // Few schedules need no decision at all.
  CHECK(only != 0 || epochs > static_cast<long long>(count));
}

TEST(membership_schedules, keep_one_primary_and_end) {
  run_schedules(Schedule::Minority::kHolds);
}

TEST(membership_schedules, keep_lineages_apart_and_go_on) {
  run_schedules(Schedule::Minority::kSplits);
}

TEST(membership_schedules, follow_from_their_seeds) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    Schedule one(seed, true);
    one.run();
    Schedule two(seed, true);
    two.run();
    CHECK(one.trace() == two.trace());
  }
}

}  // namespace
}  // namespace bluecomm::test
