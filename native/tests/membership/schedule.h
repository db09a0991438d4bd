// Runs the membership protocol of up to 8 members under a random schedule: messages are
// delayed, lost, doubled and overtaken; members crash, also in the middle of what they
// send, and are stopped; links fail for a while in one or both directions, or for good;
// accusations may be wrong. Time is virtual. A schedule follows from its seed alone.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/membership/membership.h"
#include "tests/membership/dice.h"
#include "tests/membership/faulty_links.h"

namespace bluecomm::test {

// Thrown when a schedule breaks a rule of the protocol.
struct ScheduleBroken : std::logic_error {
  using std::logic_error::logic_error;
};

class Schedule {
 public:
  using Minority = Membership::Minority;

  explicit Schedule(std::uint64_t seed, bool with_trace = false,
                    Minority minority = Minority::kHolds);

  // Runs to the end. Throws ScheduleBroken.
  void run();

  int epochs() const { return epochs_; }
  int messages() const { return messages_; }
  // The events in their order, if traced.
  const std::string& trace() const { return trace_; }

 private:
  using Time = Membership::Time;
  using Span = std::chrono::microseconds;
  static constexpr std::chrono::milliseconds kBeat{100};

  // The faults that the schedule may have, drawn from its seed.
  struct FaultMix {
    int size = 2;
    int machines = 1;
    bool only_late = false;   // nothing excludes a member but its death
    bool deaths_show = true;  // each death is certain in the end
    int lose_one_in = 0;
    int double_one_in = 0;
    int accuse_one_in = 0;         // wrong accusations of each pair and beat
    int crash_sending_one_in = 0;  // of the posts that decide
    int crashes = 0;
    int stops = 0;
    int cuts = 0;
    int broken_pairs = 0;
    Span longest_delay{};
    Span longest_stop{};
  };

  enum class Change { kDeliver, kBeat, kTick, kCrash, kStop, kThaw, kCut, kQuiet };
  struct Scheduled {
    Time at;
    std::uint64_t order;
    Change change;
    int node = 0;
    int other = 0;
    int message = -1;  // index in letters_

    bool operator>(const Scheduled& than) const {
      return at != than.at ? at > than.at : order > than.order;
    }
  };

  struct Node {
    std::unique_ptr<Membership> membership;
    bool alive = true;
    bool shows = false;  // a crash: each machine learns of it from an agent
    Time died_at{};
    Time stopped_since{};
    bool stopped = false;
    bool ticks = false;
    std::vector<Scheduled> held_back;      // arrived while it was stopped
    std::vector<std::uint64_t> installed;  // ids, by number
    std::vector<std::uint64_t> lineages;   // likewise
    std::vector<std::uint64_t> rounds;     // the epoch's id of each round that was run
  };

  struct Letter {
    Uid from;
    MembershipMessage message;
  };

  static FaultMix draw_mix(Dice& dice);
  void schedule_faults();
  void put(Time at, Change change, int node = 0, int other = 0, int message = -1);
  void handle(const Scheduled& now);
  void deliver(const Scheduled& now);
  void beat(int node);
  void judge(int node, int other);
  void run_rounds(int node);
  void crash(int node);
  void thaw(int node);
  void cut();
  void quiet();
  // After each input: sends, and checks what the node has installed.
  void settle(int node);

  // schedule_rules.cpp
  void check_install(int node);
  void check_lineages(int index) const;
  void check_rounds(int a, int b) const;
  void check_end();
  void check_end_of_lineages() const;
  void check_end_of_primary() const;
  void check_is_over() const;
  bool is_settled() const;
  bool has_split_for_good() const;
  bool shares_epoch(const Membership& membership) const;
  int newest_node() const;
  MemberSet present_in(const Epoch& epoch) const;
  bool must_end(int node) const;
  bool can_decide(const Epoch& epoch, const MemberSet& present) const;

  bool is_running(int node) const {
    return nodes_[at(node)].alive && !nodes_[at(node)].stopped;
  }
  bool is_cut(int from, int to) const { return links_.is_cut(from, to, now_); }
  int living() const;
  std::string describe(int node) const;
  void note(const std::string& text);
  [[noreturn]] void fail(const std::string& text) const;
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  static int index_of(Uid uid) { return static_cast<int>(uid % 100); }

  const std::uint64_t seed_;
  const bool with_trace_;
  const Minority minority_;
  Dice dice_;
  const FaultMix mix_;
  Time now_{std::chrono::seconds(1)};
  Time quiet_at_;
  bool is_quiet_ = false;
  Time quiet_since_{};
  std::uint64_t order_ = 0;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> queue_;
  std::vector<Letter> letters_;
  int in_flight_ = 0;
  std::vector<Node> nodes_;
  FaultyLinks links_;
  int epochs_ = 0;
  int messages_ = 0;
  int quiet_messages_ = 0;
  std::string trace_;
};

}  // namespace bluecomm::test
