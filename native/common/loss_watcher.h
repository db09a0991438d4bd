#pragma once

#include <string>

namespace bluecomm {

// Learns from the engine which ranks are lost.
class LossWatcher {
 public:
  LossWatcher() = default;
  LossWatcher(const LossWatcher&) = delete;
  LossWatcher& operator=(const LossWatcher&) = delete;
  virtual ~LossWatcher() = default;

  // Called once for each lost rank, under the progress lock. It neither blocks nor
  // calls the engine.
  virtual void note_lost(int rank, const std::string& reason) = 0;
};

}  // namespace bluecomm
