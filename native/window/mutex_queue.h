#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "request/base_request.h"

namespace bluecomm {

// The mutex of one window at one rank: its holder, and the claims that wait for it in
// the order of their arrival. Guarded by the progress lock.
class MutexQueue {
 public:
  struct Claim {
    int rank;
    RequestId request;  // at that rank

    bool operator==(const Claim&) const = default;
  };

  // Adds a claim. Returns whether it holds the mutex now; otherwise it waits.
  bool enter(Claim claim) {
    if (holder_) {
      waiting_.push_back(claim);
      return false;
    }
    holder_ = claim;
    return true;
  }

  // Removes a claim that holds the mutex or waits for it. Returns the claim that holds
  // the mutex now, if that has changed.
  std::optional<Claim> leave(Claim claim) {
    std::erase(waiting_, claim);
    return holder_ == claim ? pass_on() : std::nullopt;
  }

  // Removes all claims of a lost rank. Returns the same as leave().
  std::optional<Claim> leave_all(int rank) {
    std::erase_if(waiting_, [&](const Claim& one) { return one.rank == rank; });
    return holder_ && holder_->rank == rank ? pass_on() : std::nullopt;
  }

  const std::optional<Claim>& holder() const { return holder_; }

 private:
  std::optional<Claim> pass_on() {
    holder_.reset();
    if (waiting_.empty()) return std::nullopt;
    holder_ = waiting_.front();
    waiting_.pop_front();
    return holder_;
  }

  std::optional<Claim> holder_;
  std::deque<Claim> waiting_;
};

}  // namespace bluecomm
