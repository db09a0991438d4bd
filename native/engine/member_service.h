#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/process_state.h"
#include "engine/member_news.h"
#include "engine/membership/membership.h"
#include "engine/membership/watcher.h"
#include "engine/peers.h"
#include "transport/channel.h"

namespace bluecomm {

// Keeps one rank of a job that survives losses in agreement with the others about who
// is left: beats, watches other ranks, carries the messages of Membership over the
// links, and reports what has been decided. docs/membership.md has the states.
//
// It has no thread and never waits. Guarded by the engine's progress lock.
class MemberService {
 public:
  using Time = Clock::time_point;
  // Returns the state of the process of a rank on this machine.
  using LookAtProcess = std::function<ProcessState(int rank)>;

  // `peers` must be connected. `job` is a hash of the job's name. An empty `look`
  // stands for /proc.
  MemberService(const Peers& peers, std::uint64_t job, std::uint32_t epoch,
                MemberNews& news, LookAtProcess look,
                Membership::Minority minority = Membership::Minority::kHolds);
  MemberService(const MemberService&) = delete;
  MemberService& operator=(const MemberService&) = delete;

  // Takes a message of type kMember. Returns false and leaves it if it is not from this
  // job and this version of bluecomm.
  bool take_message(int peer, std::unique_ptr<Incoming>& message);
  // The link to a peer has ended without a goodbye.
  void note_end(int rank);
  // A peer has said goodbye: it leaves the job, but need not have ended yet.
  void note_goodbye(int rank);
  // A process has ended or is about to, as the control plane knows for certain.
  void note_death(int rank);
  // Takes no part from now on; `text` is a sentence that says why.
  void leave(std::string text);

  // Does what is due. Returns whether anything changed.
  bool poll(Time now);
  // Returns when poll() is due.
  Time next_timer() const { return why_excluded_ ? Time::max() : next_look_; }

  // Returns the ranks that the members have decided to go on without, in the order of
  // the decisions, since the last call.
  std::vector<MemberChange> take_gone();
  // Returns whether a rank is no member any more.
  bool is_gone(int rank) const { return !has_rank_[static_cast<std::size_t>(rank)]; }
  // Returns whether the process of a rank on this machine has certainly ended.
  bool has_ended(int rank) const {
    return look_at_process_(rank) == ProcessState::kEnded;
  }
  // Returns whether this rank reaches too few members to go on.
  bool is_held() const { return is_held_; }
  // Returns why this rank is no member; nothing while it is.
  const std::optional<std::string>& why_excluded() const { return why_excluded_; }

 private:
  struct Arriving {
    int peer;
    std::unique_ptr<Incoming> message;
    std::vector<std::byte> bytes;
  };
  struct Known {
    std::uint64_t signs = 0;     // of life, at the last look
    std::uint64_t repeated = 0;  // packets, likewise
    bool link_ended = false;
    bool has_left = false;     // it has said goodbye
    bool is_presumed = false;  // silent, because the watched rank on its machine is
    std::string cause;         // evidence against it, as in MemberChange
    double silent_s = 0;
  };

  bool read_messages(Time now);
  void look(Time now);
  void listen(Time now);
  void beat();
  void accuse(Time now);
  void presume_silent(int machine, bool silent, Time now);
  void observe(int rank, Evidence evidence, std::string_view cause, Time now);
  void settle();
  void report_held(bool is_held);
  void leave_behind();
  void report_split();
  void report_gone(int rank);
  void choose_watched();
  void send_posts();
  void post(int rank, std::span<const std::byte> payload);
  bool is_watched(int rank) const;
  // Returns whether a rank is another member.
  bool is_other(int rank) const { return rank != rank_ && !is_gone(rank); }
  Known& known(int rank) { return known_[static_cast<std::size_t>(rank)]; }
  Uid uid(int rank) const { return uids_[static_cast<std::size_t>(rank)]; }
  int rank_of(Uid uid) const;

  const Peers& peers_;
  const std::uint64_t job_;
  const std::uint32_t epoch_;
  MemberNews& news_;
  const int rank_;
  LookAtProcess look_at_process_;
  std::vector<ProcessWatch> processes_;  // by rank; those of this machine
  std::vector<Uid> uids_;                // by rank
  std::vector<bool> has_rank_;           // whether it is a member
  std::vector<int> machine_of_;          // by rank
  std::vector<Known> known_;             // by rank
  std::vector<int> watched_;
  std::vector<int> beats_to_;  // the watched, and those that watch this rank
  Membership membership_;
  Watcher watcher_;
  std::vector<Arriving> arriving_;
  std::vector<MemberChange> gone_;
  Time next_look_;
  Time hurry_until_;  // looks are close together, because a link has just ended
  Time next_beat_;
  std::uint32_t installed_ = 0;  // number of the newest epoch that was reported
  std::uint64_t lineage_ = Epoch::kPrimary;
  bool is_held_ = false;
  std::optional<std::string> why_excluded_;
};

}  // namespace bluecomm
