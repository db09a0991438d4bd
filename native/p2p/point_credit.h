#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>

#include "common/status.h"
#include "p2p/point_request.h"

namespace bluecomm {

// Bounds the messages between this rank and one peer that wait for a receive: their
// headers use memory of the receiver, even if they have no payload. The receiver
// reports how many no longer wait; the sender holds back its sends beyond kLimit.
// Guarded by the engine's progress lock.
class PointCredit {
 public:
  static constexpr std::uint64_t kLimit = 16384;

  // --- The sender's side ---

  // Returns whether as many messages wait at the peer as may.
  bool is_spent() const { return sent_ - taken_ >= kLimit; }
  // Returns whether a message may be sent now. If not, or if its values have not been
  // written, hold() keeps its send and those that follow.
  bool may_send() const { return held_.empty() && !is_spent(); }
  void hold(std::shared_ptr<PointRequest> send) {
    held_.push_back({std::move(send), std::nullopt});
  }
  void forget(const PointRequest& send) {
    held_.remove_if([&](const HeldSend& one) { return one.send.get() == &send; });
  }
  // The peer is lost, so it need not learn of sends that have failed.
  void forget_failed() {
    held_.remove_if([](const HeldSend& one) { return one.failure.has_value(); });
  }
  // A send has failed that has not been sent. It keeps its place, or takes the last
  // one: the peer has to learn of it there.
  void hold_failed(const std::shared_ptr<PointRequest>& send, const Status& failure) {
    const auto place =
        std::find_if(held_.begin(), held_.end(),
                     [&](const HeldSend& one) { return one.send == send; });
    if (place == held_.end()) {
      held_.push_back({send, failure});
    } else {
      place->failure = failure;
    }
  }
  void count_sent() { ++sent_; }
  void uncount_sent() { --sent_; }
  std::uint64_t sent() const { return sent_; }
  // The peer has reported that `total` messages no longer wait.
  void set_taken(std::uint64_t total) {
    if (total > taken_ && total <= sent_) taken_ = total;
  }
  struct HeldSend {
    std::shared_ptr<PointRequest> send;
    std::optional<Status> failure;  // why it will not be sent
  };
  // Returns the next held send, if the peer may get it, or learn of its failure, now.
  std::optional<HeldSend> next_held() const {
    if (held_.empty() || is_spent()) return std::nullopt;
    return held_.front();
  }

  // --- The receiver's side ---

  // The peer has sent `total` messages so far. Headers arrive in order, so the missing
  // ones were cancelled before they left the peer.
  void set_sent(std::uint64_t total) {
    if (total <= seen_) return;
    count_taken(total - seen_);
    seen_ = total;
  }
  // The message with this number has arrived.
  void arrive(std::uint64_t number) {
    if (number == 0) return;
    set_sent(number - 1);
    if (number > seen_) seen_ = number;
  }
  void count_taken(std::uint64_t messages = 1) { let_go_ += messages; }
  // Returns the total to report to the peer; 0 if it need not be told yet.
  std::uint64_t take_report() {
    if (let_go_ - reported_ < kLimit / 4) return 0;
    return reported_ = let_go_;
  }

 private:
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
  std::list<HeldSend> held_;  // in the order of their start
  std::uint64_t seen_ = 0;
  std::uint64_t let_go_ = 0;
  std::uint64_t reported_ = 0;
};

}  // namespace bluecomm
