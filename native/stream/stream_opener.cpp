#include "stream/stream_opener.h"

#include <algorithm>

namespace bluecomm::stream {
namespace {

constexpr std::chrono::milliseconds kMaxOpenDelay{60'000};

}  // namespace

StreamOpener::StreamOpener(Poller& poller, const Options& options, const Hello& hello,
                           std::vector<Address> addresses, const Address& first)
    : poller_(poller),
      options_(options),
      hello_(hello),
      addresses_(std::move(addresses)) {
  const auto found =
      std::find_if(addresses_.begin(), addresses_.end(),
                   [&](const Address& one) { return one.text() == first.text(); });
  if (found != addresses_.end()) {
    std::rotate(addresses_.begin(), found, addresses_.end());
  }
}

std::vector<StreamSocket> StreamOpener::advance(Clock::time_point now) {
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    if (current->advance(now)) {
      fail(current->address(), now);
      attempts_.erase(current);
    } else if (current->done()) {
      // No deadline: the peer may choose the stream at any later time.
      candidates_.emplace_back(
          current->address(),
          Candidate(hello_.group, current->take_socket(), Clock::time_point::max()));
      attempts_.erase(current);
    }
  }
  std::vector<StreamSocket> opened;
  for (auto candidate = candidates_.begin(); candidate != candidates_.end();) {
    const auto current = candidate++;
    const auto verdict = current->second.read_verdict(poller_);
    if (verdict == Candidate::Verdict::kNone) continue;
    if (verdict == Candidate::Verdict::kOpen) {
      opened.push_back(current->second.take_socket());
      ++opened_;
    } else {
      fail(current->first, now);
    }
    candidates_.erase(current);
  }
  start_attempts(now);
  return opened;
}

void StreamOpener::start_attempts(Clock::time_point now) {
  if (now < retry_at_) return;
  while (opened_ + attempts_.size() + candidates_.size() < wanted_) {
    hello_.stream =
        static_cast<std::uint32_t>(opened_ + attempts_.size() + candidates_.size());
    const Address& address = addresses_[turn_++ % addresses_.size()];
    attempts_.emplace_back(poller_, options_, address, hello_, now);
  }
}

// Removes an address that has failed. The first address has worked before, so it stays
// and is tried again later.
void StreamOpener::fail(const Address& address, Clock::time_point now) {
  const auto found =
      std::find_if(addresses_.begin() + 1, addresses_.end(),
                   [&](const Address& one) { return one.text() == address.text(); });
  if (found != addresses_.end()) {
    addresses_.erase(found);
    return;
  }
  retry_at_ = now + retry_delay_;
  retry_delay_ = std::min(2 * retry_delay_, kMaxOpenDelay);
}

Clock::time_point StreamOpener::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  if (opened_ + attempts_.size() + candidates_.size() < wanted_) next = retry_at_;
  for (const DialAttempt& attempt : attempts_)
    next = std::min(next, attempt.deadline());
  return next;
}

void StreamOpener::abandon() noexcept {
  for (DialAttempt& attempt : attempts_) attempt.abandon();
  for (auto& [address, candidate] : candidates_) candidate.abandon();
}

}  // namespace bluecomm::stream
