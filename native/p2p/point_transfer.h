#pragma once

#include <cstddef>

#include "p2p/point_matching.h"

namespace bluecomm {

// Copies the values of a send into the memory of the receive that has taken it. Both
// have the same length.
class PointTransfer {
 public:
  PointTransfer(SentPoint sent, PointRequestPtr receive);

  const SentPoint& sent() const { return sent_; }
  const PointRequestPtr& receive() const { return receive_; }
  std::size_t received() const { return received_; }
  bool done() const {
    return received_ == receive_->call().memory.size() &&
           (!sent_.own || sent_.own->has_values());
  }

  // Takes at most about `budget` of the bytes that have arrived. Returns whether it
  // took any.
  bool move(std::size_t budget);

 private:
  SentPoint sent_;
  PointRequestPtr receive_;
  std::size_t received_ = 0;
};

}  // namespace bluecomm
