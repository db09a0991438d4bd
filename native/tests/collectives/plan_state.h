// How far each rank has come with its plan in the simulator, and the messages between
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/collectives/simulator.h"

namespace bluecomm::test {

using ConstBytes = std::span<const std::byte>;

bool overlap(ConstBytes a, ConstBytes b);
bool holds(ConstBytes whole, ConstBytes part);

// Sender, receiver, phase, slot.
using MessageKey = std::tuple<int, int, std::size_t, std::uint32_t>;

struct InFlight {
  ConstBytes payload;            // the sender's memory, or `eager`
  std::vector<std::byte> eager;  // a copy
  std::size_t final_nbytes = 0;  // bytes that the sender has computed
  std::size_t released = 0;      // bytes that the sender may overwrite
  double scale = 1.0;
  std::int64_t first_dim = 0;
  bool is_received = false;
};

using Network = std::map<MessageKey, InFlight>;

// The state of a gather in a running phase.
struct GatherProgress {
  std::vector<InFlight*> messages;  // one for each source; null for own memory
  bool is_accepted = false;
  std::size_t combined = 0;
  std::size_t written = 0;         // less than `combined` while waiting for releases
  std::vector<std::byte> scratch;  // with overwrites_sent
};

struct SimulatedPhase {
  std::size_t number;
  Phase& phase;
  bool is_bound;
  std::vector<GatherProgress> progress;
};

// The progress of one rank.
struct PlanState {
  PlanState(MemberCall& member, Network& network);

  bool done() const {
    return running.empty() && next_phase == member.plan.phases.size();
  }
  std::string text() const;
  ConstBytes scratch() const {
    return {member.plan.scratch.get(), member.plan.scratch_nbytes};
  }
  InFlight* find(const Source& source, std::size_t phase);
  // Returns how much of the beginning of `bytes` the phases before `phase` have
  // computed.
  std::size_t ready_prefix(ConstBytes bytes, std::size_t phase) const;
  // Returns how many bytes of a send the peer no longer reads.
  std::size_t released(std::size_t phase, const Send& send) const;
  // Returns whether a peer may still read the part of `send` that lies in `dst`.
  bool is_read(std::size_t phase, const Send& send, ConstBytes dst) const;

  MemberCall& member;
  Network& network;
  const int rank;
  std::size_t next_phase = 0;
  std::deque<SimulatedPhase> running;
  std::vector<std::pair<std::size_t, const Send*>> unreleased;  // with their phases
};

}  // namespace bluecomm::test
