#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace bluecomm {

// The mutex of one window at one rank: who holds it, and who waits, in the order in
// which they came.
class MutexQueue {
 public:
  struct Claim {
    int rank;
    std::uint64_t request;  // the rank's number for it

    bool operator==(const Claim&) const = default;
  };

  // True: `claim` holds the mutex now; else it waits.
  bool enter(Claim claim) {
    if (holder_) {
      waiting_.push_back(claim);
      return false;
    }
    holder_ = claim;
    return true;
  }

  // Takes a claim back, whether it holds or waits. The claim that holds the mutex now,
  // if that is news.
  std::optional<Claim> leave(Claim claim) {
    std::erase(waiting_, claim);
    return holder_ == claim ? pass_on() : std::nullopt;
  }

  // The same for all claims of a rank that is gone.
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
