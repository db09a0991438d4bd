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

// Who the other ranks are, how they are reached, and which of them are gone.
class Peers {
 public:
  using Clock = std::chrono::steady_clock;

  // How long a broken link waits for the control plane, which knows why: its word goes
  // through three processes, each of which may have to wait for a processor.
  static constexpr std::chrono::seconds kGrace{5};
  // How long after a goodbye. The peer's process ends some time after that.
  static constexpr std::chrono::seconds kFarewell{3};

  Peers(int rank, int size, std::string machine);

  // Opens a channel to each peer, over the first of `transports` that reaches it.
  // Throws std::invalid_argument for a peer that none of them reaches.
  void connect(std::vector<Peer> peers,
               std::span<const std::unique_ptr<Transport>> transports);

  // Forgets the channels, which their transports are about to free.
  void disconnect();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(entries_.size()); }
  bool is_peer(int rank) const;
  // Indexed by rank; null for this rank.
  std::span<Channel* const> channels() const { return channels_; }
  std::string_view transport_of(int rank) const;
  // This rank and its peers on one machine.
  int ranks_here() const;

  // rank 1 (hostB)
  std::string describe_rank(int rank) const;
  // rank 1 on hostB (pid 4711)
  std::string describe_process(int rank) const;

  enum class State { kAlive, kLost, kFinished };
  State state(int rank) const { return entry(rank).state; }
  bool alive(int rank) const { return state(rank) == State::kAlive; }

  // The link broke, or the peer said goodbye: why, as a sentence about the peer. True
  // when that is news.
  bool lose(int rank, std::string text);
  bool finish(int rank);
  // The control plane's sentence: takes the place of what the link told.
  void explain(int rank, std::string text);

  // When operations that need a peer that is gone give up, and why.
  Clock::time_point grace_until(int rank) const { return entry(rank).grace_until; }
  const std::string& reason(int rank) const { return entry(rank).reason; }
  std::span<const int> gone() const { return gone_; }

 private:
  struct Entry {
    Peer peer;
    const Transport* transport = nullptr;
    State state = State::kAlive;
    std::string reason;
    bool explained = false;
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
};

}  // namespace bluecomm
