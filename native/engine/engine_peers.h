#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "engine/peers.h"
#include "request/request_peers.h"

namespace bluecomm {

// Gives the services of an engine access to its peers.
class EnginePeers final : public RequestPeers {
 public:
  explicit EnginePeers(const Peers& peers) : peers_(peers) {}

  Channel* channel(int rank) const override {
    return is_gone(rank) ? nullptr : peers_.channels()[static_cast<std::size_t>(rank)];
  }

  bool is_gone(int rank) const override {
    return rank != peers_.rank() && !peers_.alive(rank);
  }

  bool is_dropped(int rank) const override { return peers_.is_dropped(rank); }

  std::optional<std::string> why_gone(int rank,
                                      Clock::time_point since) const override {
    if (!is_gone(rank)) return std::nullopt;
    Clock::time_point certain = peers_.grace_until(rank);
    if (peers_.state(rank) == Peers::State::kFinished &&
        since > Clock::time_point::min()) {
      certain = std::max(certain, since + Peers::kFinishedGrace);
    }
    if (Clock::now() < certain) return std::nullopt;
    return peers_.reason(rank);
  }

  std::string describe_rank(int rank) const override {
    return peers_.describe_rank(rank);
  }

 private:
  const Peers& peers_;
};

}  // namespace bluecomm
