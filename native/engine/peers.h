#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/channel.h"
#include "transport/peer.h"

namespace bluecomm {

// The other ranks: their hosts, the channels to them, and which of them are gone. Not
// thread-safe; the dispatcher calls it under the progress lock.
class Peers {
 public:
  using Clock = std::chrono::steady_clock;

  // How long operations wait, after a link broke, for the control plane to report the
  // reason. The report passes through three processes, each of which may wait for a
  // core; the report about a silent host comes 2 s after the link timeout.
  static constexpr std::chrono::milliseconds kGrace{3500};
  // The same after a goodbye, because the peer's process ends some time after it.
  static constexpr std::chrono::seconds kFinishedGrace{3};

  Peers(int rank, int size, std::string machine);

  // Opens a channel to each peer, over the first of `transports` that reaches it.
  // Throws std::invalid_argument if no transport reaches a peer.
  void connect(std::vector<Peer> peers,
               std::span<const std::unique_ptr<Transport>> transports);

  // Drops the pointers to the channels, before the transports free them.
  void disconnect();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(entries_.size()); }
  bool is_peer(int rank) const;
  // Returns the channels by rank; null for this rank.
  std::span<Channel* const> channels() const { return channels_; }
  std::string_view transport_of(int rank) const;
  // Returns the number of ranks on this machine, including this one.
  int ranks_here() const;

  const Peer& peer(int rank) const { return entry(rank).peer; }
  // Returns whether a rank runs on this machine.
  bool is_here(int rank) const {
    return rank == rank_ || entry(rank).peer.machine == machine_;
  }

  // Returns a text such as "rank 1 (hostB)".
  std::string describe_rank(int rank) const;
  // Returns a text such as "rank 1 on hostB (pid 4711)".
  std::string describe_process(int rank) const;

  enum class State { kAlive, kLost, kFinished };
  State state(int rank) const { return entry(rank).state; }
  bool alive(int rank) const { return state(rank) == State::kAlive; }

  // Record that the link broke because of `text`, or that the peer said goodbye. Return
  // whether the peer was alive before.
  bool lose(int rank, std::string text);
  bool finish(int rank);
  // Records the reason that the control plane reports, which replaces the link's
  // reason.
  void explain(int rank, std::string text);

  // Return the time at which operations that need this peer fail, if it is gone, and
  // the reason.
  Clock::time_point grace_until(int rank) const { return entry(rank).grace_until; }
  const std::string& reason(int rank) const { return entry(rank).reason; }
  // Returns whether the reason is final.
  bool is_explained(int rank) const { return entry(rank).explained; }
  std::span<const int> gone() const { return gone_; }

  // Records that operations go on without a peer that is gone. Returns false if they
  // did so before.
  bool drop(int rank);
  bool is_dropped(int rank) const { return !dropped_.empty() && entry(rank).dropped; }
  std::span<const int> dropped() const { return dropped_; }

 private:
  struct Entry {
    Peer peer;
    const Transport* transport = nullptr;
    State state = State::kAlive;
    std::string reason;
    bool explained = false;
    bool dropped = false;
    Clock::time_point grace_until = Clock::time_point::max();
  };

  Entry& entry(int rank) { return entries_[static_cast<std::size_t>(rank)]; }
  const Entry& entry(int rank) const {
    return entries_[static_cast<std::size_t>(rank)];
  }
  bool mark_gone(int rank, State state);

  const int rank_;
  const std::string machine_;
  std::vector<Entry> entries_;
  std::vector<Channel*> channels_;
  std::vector<int> gone_;
  std::vector<int> dropped_;
};

}  // namespace bluecomm
