#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "engine/peers.h"
#include "window/window_peers.h"

namespace bluecomm {

// Gives the windows of an engine access to its peers.
class EnginePeers final : public WindowPeers {
 public:
  explicit EnginePeers(const Peers& peers) : peers_(peers) {}

  Channel* channel(int rank) const override {
    return is_gone(rank) ? nullptr : peers_.channels()[static_cast<std::size_t>(rank)];
  }

  bool is_gone(int rank) const override {
    return rank != peers_.rank() && !peers_.alive(rank);
  }

  std::optional<std::string> why_gone(int rank) const override {
    if (!is_gone(rank) || Peers::Clock::now() < peers_.grace_until(rank)) {
      return std::nullopt;
    }
    return peers_.reason(rank);
  }

  std::string describe_rank(int rank) const override {
    return peers_.describe_rank(rank);
  }

 private:
  const Peers& peers_;
};

}  // namespace bluecomm
