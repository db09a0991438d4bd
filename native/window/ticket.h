#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/status.h"
#include "window/account.h"

namespace bluecomm {

// A request to other ranks about a window, which may still be under way. All under the
// progress lock.
struct WindowTicket {
  WindowAccount::Call call;
  std::string label;  // win_put 'x' on rank 3
  std::chrono::steady_clock::time_point deadline;
  std::size_t unanswered = 0;  // parts, one for each rank that was asked
  Status status;               // the first failure of a part
  std::uint64_t number = 0;    // of the claim, for a mutex
  bool done() const { return unanswered == 0; }
};

}  // namespace bluecomm
