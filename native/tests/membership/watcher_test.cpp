// The rules by which silence becomes evidence, under simulated time.
#include "engine/membership/watcher.h"

#include <map>
#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

using Duration = WatchTiming::Duration;
using std::chrono::milliseconds;

constexpr WatchTiming kWatching;
constexpr int kHere = 1;   // a rank on this machine
constexpr int kThere = 2;  // a rank on another machine

// A watcher that looks on time, unless the test says otherwise.
struct Lookout {
  Lookout() {
    watcher.watch(kHere, true);
    watcher.watch(kThere, false);
    hear_both();
  }

  void hear_both() {
    watcher.hear(kHere, now);
    watcher.hear(kThere, now);
  }

  // Lets time pass, with a look at each interval. Returns what the last one has found.
  std::vector<Watcher::Finding> pass(Duration span) {
    std::vector<Watcher::Finding> found;
    for (const auto end = now + span; now < end;) found = look(kWatching.look);
    return found;
  }
  // Looks after `span`; it was due after one interval.
  std::vector<Watcher::Finding> look(Duration span) {
    const auto due = now + kWatching.look;
    now += span;
    watcher.note_turn(now);
    return watcher.look(now, due, [this](int rank) { return states[rank]; });
  }

  Watcher::Time now{std::chrono::hours(1)};
  std::map<int, ProcessState> states{{kHere, ProcessState::kRuns}};
  Watcher watcher{now};
};

void check_finds(const std::vector<Watcher::Finding>& found, int rank,
                 Evidence evidence) {
  REQUIRE(found.size() == 1);
  CHECK_EQ(found[0].rank, rank);
  CHECK(found[0].evidence == evidence);
}

TEST(watcher, says_nothing_of_ranks_that_beat) {
  Lookout watch;
  for (int i = 0; i < 50; ++i) {
    CHECK(watch.pass(kWatching.beat).empty());
    watch.hear_both();
  }
}

TEST(watcher, silence_of_another_machine_is_evidence_after_its_limit) {
  Lookout watch;
  CHECK(watch.pass(kWatching.silent - kWatching.look).empty());
  check_finds(watch.pass(kWatching.look), kThere, Evidence::kSilent);
  check_finds(watch.pass(kWatching.look), kThere, Evidence::kSilent);
  watch.watcher.hear(kThere, watch.now);
  CHECK(watch.pass(kWatching.look).empty());
}

TEST(watcher, a_rank_on_this_machine_is_accused_only_if_the_kernel_says_so) {
  Lookout watch;
  watch.watcher.ignore(kThere);
  CHECK(watch.pass(100 * kWatching.silent).empty());
  watch.states[kHere] = ProcessState::kStopped;
  check_finds(watch.pass(kWatching.look), kHere, Evidence::kStopped);
  watch.states[kHere] = ProcessState::kEnded;
  check_finds(watch.pass(kWatching.look), kHere, Evidence::kDead);
  watch.states[kHere] = ProcessState::kUnknown;
  CHECK(watch.pass(kWatching.look).empty());
}

TEST(watcher, a_stop_counts_only_after_silence) {
  Lookout watch;
  watch.watcher.ignore(kThere);
  watch.states[kHere] = ProcessState::kStopped;
  CHECK(watch.pass(kWatching.stopped - kWatching.look).empty());
  check_finds(watch.pass(kWatching.look), kHere, Evidence::kStopped);
}

TEST(watcher, a_rank_may_be_silent_before_it_has_started) {
  Lookout watch;
  watch.watcher.ignore(kThere);
  watch.watcher.watch(kThere, false);
  CHECK(watch.pass(100 * kWatching.silent).empty());
  watch.watcher.hear(kThere, watch.now);
  check_finds(watch.pass(kWatching.silent), kThere, Evidence::kSilent);
}

TEST(watcher, waits_for_the_end_of_a_process_whose_link_has_ended) {
  Lookout watch;
  watch.watcher.ignore(kThere);
  watch.watcher.end(kHere);
  CHECK(watch.pass(kWatching.look).empty());
  watch.states[kHere] = ProcessState::kEnded;
  check_finds(watch.pass(kWatching.look), kHere, Evidence::kDead);
}

TEST(watcher, one_that_is_late_itself_is_patient) {
  Lookout watch;
  const Duration delay = milliseconds(200);
  CHECK(watch.look(kWatching.look + delay).empty());
  watch.hear_both();
  CHECK(watch.pass(kWatching.delays * delay - kWatching.look).empty());
  check_finds(watch.pass(kWatching.look), kThere, Evidence::kSilent);
  // The delay is forgotten.
  watch.watcher.hear(kThere, watch.now);
  for (Duration passed{0}; passed < 2 * kWatching.memory; passed += kWatching.look) {
    watch.pass(kWatching.look);
    watch.hear_both();
  }
  check_finds(watch.pass(kWatching.silent), kThere, Evidence::kSilent);
}

TEST(watcher, one_that_did_not_run_accuses_nobody_for_a_while) {
  Lookout watch;
  watch.states[kHere] = ProcessState::kStopped;
  CHECK(watch.look(kWatching.jump + kWatching.look).empty());
  CHECK(watch.watcher.absence() == kWatching.jump + kWatching.look);
  CHECK(watch.pass(kWatching.mute - kWatching.look).empty());
  CHECK(!watch.pass(2 * kWatching.memory).empty());
}

TEST(watcher, remembers_an_absence_while_it_may_be_why_others_go_on) {
  Lookout watch;
  watch.now += kWatching.jump + kWatching.look;
  CHECK(watch.watcher.note_turn(watch.now));
  watch.pass(kWatching.mute - kWatching.look);
  CHECK(watch.watcher.absence() == kWatching.jump + kWatching.look);
  watch.pass(kWatching.look);
  CHECK(watch.watcher.absence() == Duration{0});
}

TEST(watcher, waits_for_repeats_on_a_path_that_loses_packets) {
  Lookout watch;
  const Duration repeat_after = milliseconds(220);
  watch.watcher.note_losses(kThere, repeat_after, watch.now);
  CHECK(watch.pass(kWatching.repeats * repeat_after - kWatching.look).empty());
  check_finds(watch.pass(kWatching.look), kThere, Evidence::kSilent);
  watch.pass(kWatching.lossy);
  watch.watcher.hear(kThere, watch.now);
  check_finds(watch.pass(kWatching.silent), kThere, Evidence::kSilent);
}

TEST(watcher, the_ranks_of_a_machine_share_the_others) {
  // Machines of three, two and one rank; rank 4 is no member any more.
  const std::vector<int> machine_of{0, 0, 0, 1, -1, 1, 2};
  CHECK((plan_watch(0, machine_of).watched == std::vector<int>{1, 2, 3, 6}));
  CHECK((plan_watch(1, machine_of).watched == std::vector<int>{0, 2, 5, 6}));
  CHECK((plan_watch(6, machine_of).watched == std::vector<int>{0, 3}));
  CHECK(plan_watch(0, std::vector<int>{0}).watched.empty());
}

TEST(watcher, each_rank_beats_to_those_that_watch_it) {
  std::vector<int> machine_of;
  for (int machine = 0; machine < 12; ++machine) {
    for (int i = 0; i < 1 + machine % 4; ++i) machine_of.push_back(machine);
  }
  const int size = static_cast<int>(machine_of.size());
  for (int rank = 0; rank < size; ++rank) {
    std::vector<int> expected;
    for (int other = 0; other < size; ++other) {
      for (const int watched : plan_watch(other, machine_of).watched) {
        if (watched == rank) expected.push_back(other);
      }
    }
    CHECK(plan_watch(rank, machine_of).watchers == expected);
  }
}

}  // namespace
}  // namespace bluecomm::test
