// Decides when silence is evidence. MemberService calls look() about every 50 ms, and
// hear() for each rank from which something has arrived since.
#include "engine/membership/watcher.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace bluecomm {
namespace {

// More machines than this need not be watched by one rank.
constexpr std::size_t kMachines = 8;

}  // namespace

Watcher::Watcher(Time now, const WatchTiming& timing)
    : timing_(timing), ran_at_(now), mute_until_(now) {}

void Watcher::watch(int rank, bool is_here) {
  watched_.try_emplace(rank).first->second.is_here = is_here;
}

void Watcher::end(int rank) {
  const auto found = watched_.find(rank);
  if (found != watched_.end()) found->second.has_ended = true;
}

void Watcher::hear(int rank, Time now) {
  const auto found = watched_.find(rank);
  if (found == watched_.end()) return;
  found->second.was_heard = true;
  found->second.heard_at = now;
}

void Watcher::note_losses(int rank, Duration repeat_after, Time now) {
  const auto found = watched_.find(rank);
  if (found == watched_.end()) return;
  found->second.lossy_until = now + timing_.lossy;
  found->second.repeat_after = repeat_after;
}

bool Watcher::note_turn(Time now) {
  const auto gap =
      std::chrono::duration_cast<Duration>(now - std::exchange(ran_at_, now));
  if (gap <= timing_.jump) {
    if (now >= mute_until_) absence_ = Duration{0};
    return false;
  }
  absence_ = gap;
  // The silence of the others may have been this process's own.
  mute_until_ = now + timing_.mute;
  for (auto& [rank, one] : watched_) one.heard_at = now;
  return true;
}

std::vector<Watcher::Finding> Watcher::look(Time now, Time due, const Look& state_of) {
  using std::chrono::duration_cast;
  const auto late = std::max(duration_cast<Duration>(now - due), Duration{0});
  note_delay(late, now);
  std::vector<Finding> findings;
  for (auto& [rank, one] : watched_) {
    const auto silence = duration_cast<Duration>(now - one.heard_at);
    if (one.is_here && one.has_ended) {
      if (state_of(rank) == ProcessState::kEnded) {
        findings.push_back({rank, Evidence::kDead, silence});
      }
      continue;
    }
    if (now < mute_until_ || !one.was_heard) continue;
    if (!one.is_here) {
      if (silence >= limit(rank, now)) {
        findings.push_back({rank, Evidence::kSilent, silence});
      }
      continue;
    }
    if (silence < std::max(timing_.stopped, patience(now))) continue;
    // The kernel knows better than any clock: a process that waits for a core is late.
    switch (state_of(rank)) {
      case ProcessState::kStopped:
        findings.push_back({rank, Evidence::kStopped, silence});
        break;
      case ProcessState::kEnded:
        findings.push_back({rank, Evidence::kDead, silence});
        break;
      case ProcessState::kRuns:
      case ProcessState::kUnknown:
        break;
    }
  }
  return findings;
}

Watcher::Duration Watcher::limit(int rank, Time now) const {
  Duration limit = std::max(timing_.silent, patience(now));
  const auto found = watched_.find(rank);
  if (found != watched_.end() && now < found->second.lossy_until) {
    limit = std::max(limit, timing_.repeats * found->second.repeat_after);
  }
  return limit;
}

void Watcher::note_delay(Duration delay, Time now) {
  if (now - delays_[newest_].since >= timing_.memory / 5) {
    newest_ = (newest_ + 1) % delays_.size();
    delays_[newest_] = {now, Duration{0}};
  }
  Duration& longest = delays_[newest_].longest;
  longest = std::max(longest, delay);
}

// Returns the limit that this process's own delays demand.
Watcher::Duration Watcher::patience(Time now) const {
  Duration longest{0};
  for (const Delay& one : delays_) {
    if (now - one.since < timing_.memory + timing_.memory / 5) {
      longest = std::max(longest, one.longest);
    }
  }
  return timing_.delays * longest;
}

WatchPlan plan_watch(int rank, std::span<const int> machine_of) {
  std::map<int, std::vector<int>> by_machine;
  for (std::size_t other = 0; other < machine_of.size(); ++other) {
    if (machine_of[other] >= 0) {
      by_machine[machine_of[other]].push_back(static_cast<int>(other));
    }
  }
  std::vector<const std::vector<int>*> machines;
  std::size_t mine = 0;
  for (const auto& [machine, ranks] : by_machine) {
    if (machine == machine_of[static_cast<std::size_t>(rank)]) mine = machines.size();
    machines.push_back(&ranks);
  }
  const std::vector<int>& here = *machines[mine];
  const auto position = static_cast<std::size_t>(
      std::find(here.begin(), here.end(), rank) - here.begin());
  WatchPlan plan{here, here};
  std::erase(plan.watched, rank);
  std::erase(plan.watchers, rank);
  const std::size_t count = machines.size();
  for (std::size_t i = 1; i <= std::min(kMachines, count - 1); ++i) {
    const std::vector<int>& next = *machines[(mine + i) % count];
    plan.watched.push_back(next[position % next.size()]);
    const std::vector<int>& before = *machines[(mine + count - i) % count];
    for (std::size_t j = position; j < before.size(); j += here.size()) {
      plan.watchers.push_back(before[j]);
    }
  }
  std::sort(plan.watched.begin(), plan.watched.end());
  std::sort(plan.watchers.begin(), plan.watchers.end());
  return plan;
}

}  // namespace bluecomm
