#include "stream/dialer.h"

#include <algorithm>

#include "stream/socket.h"

namespace bluecomm::stream {

Dialer::Dialer(Poller& poller, const Options& options, const Hello& hello,
               const std::vector<Address>& addresses, Clock::time_point now)
    : poller_(poller),
      options_(options),
      hello_(hello),
      addresses_(addresses),
      next_start_(now) {
  hello_.stream = 0;
  hello_.group = random_nonce();
}

void Dialer::advance(Clock::time_point now) {
  if (state_ != State::kRunning) return;
  while (!greeted_ && next_address_ < addresses_.size() &&
         (now >= next_start_ || attempts_.empty())) {
    next_start_ = now + options_.stagger;
    attempts_.emplace_back(poller_, options_, addresses_[next_address_++], hello_, now);
  }
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    if (const auto failure = current->advance(now)) {
      failures_[current->address().text()] = *failure;
      refused_ &= current->refused();
      attempts_.erase(current);
    } else if (current->done()) {
      socket_ = current->take_socket();
      attempts_.clear();
      state_ = State::kDone;
      return;
    } else if (!greeted_ && current->greeted()) {
      // This address works, so the other attempts are not needed.
      greeted_ = true;
      attempts_.remove_if(
          [&](const DialAttempt& other) { return &other != &*current; });
      attempt = attempts_.end();
    }
  }
  const bool more = !greeted_ && next_address_ < addresses_.size();
  if (attempts_.empty() && !more) state_ = State::kFailed;
}

Clock::time_point Dialer::next_timer() const {
  if (state_ != State::kRunning) return Clock::time_point::min();
  Clock::time_point next = Clock::time_point::max();
  if (!greeted_ && next_address_ < addresses_.size()) {
    next = attempts_.empty() ? Clock::time_point::min() : next_start_;
  }
  for (const DialAttempt& attempt : attempts_)
    next = std::min(next, attempt.deadline());
  return next;
}

void Dialer::abandon() noexcept {
  for (DialAttempt& attempt : attempts_) attempt.abandon();
  socket_.fd.reset();
}

}  // namespace bluecomm::stream
