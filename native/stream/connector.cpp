#include "stream/connector.h"

#include <algorithm>
#include <utility>

namespace bluecomm::stream {
namespace {

constexpr std::chrono::milliseconds kMaxRetryDelay{1000};

}  // namespace

Connector::Connector(Poller& poller, const Options& options, const Hello& hello,
                     const std::vector<Address>& addresses)
    : poller_(poller), options_(options), hello_(hello), addresses_(addresses) {}

void Connector::want(Clock::time_point now) {
  if (!wanted_since_) wanted_since_ = now;
}

void Connector::admit(const Hello& hello, StreamSocket socket, Clock::time_point now) {
  // A peer that dials again has abandoned its previous connection.
  accepted_.reset();
  accepted_.emplace(hello.group, std::move(socket), now + options_.handshake_timeout);
}

std::optional<Connector::First> Connector::advance(Clock::time_point now) {
  if (auto chosen = check(accepted_, false, now)) return chosen;
  if (dialer_) {
    advance_dialer(now);
  } else if (wanted_since_ && !dialed_ && !accepted_ && now >= retry_at_) {
    dialer_.emplace(poller_, options_, hello_, addresses_, now);
    dialer_->advance(now);
  }
  const bool had_dialed = dialed_.has_value();
  if (auto chosen = check(dialed_, true, now)) return chosen;
  if (had_dialed && !dialed_) retry_later(now);

  if (!wanted_since_) return std::nullopt;
  const bool refused = !answered_ && !failures_.empty() && !dialer_;
  if (waited(now) >= options_.connect_timeout ||
      (refused && waited(now) >= options_.refused_timeout)) {
    failure_ = failure_text();
  }
  return std::nullopt;
}

void Connector::advance_dialer(Clock::time_point now) {
  dialer_->advance(now);
  if (dialer_->state() == Dialer::State::kRunning) return;
  if (dialer_->state() == Dialer::State::kDone) {
    dialed_.emplace(dialer_->group(), dialer_->take_socket(),
                    now + options_.connect_timeout);
    answered_ = true;
  } else {
    failures_ = dialer_->failures();
    answered_ |= !dialer_->refused();
    retry_later(now);
  }
  dialer_.reset();
}

void Connector::retry_later(Clock::time_point now) {
  retry_at_ = now + retry_delay_;
  retry_delay_ = std::min(2 * retry_delay_, kMaxRetryDelay);
}

// Returns the candidate if it is chosen, and drops it if it can no longer be chosen.
std::optional<Connector::First> Connector::check(std::optional<Candidate>& candidate,
                                                 bool dialed, Clock::time_point now) {
  if (!candidate) return std::nullopt;
  using Verdict = Candidate::Verdict;
  const Verdict verdict = decides() ? Verdict::kOpen : candidate->read_verdict(poller_);
  if (verdict == Verdict::kOpen) {
    First first{candidate->take_socket(), candidate->group(), dialed};
    candidate.reset();
    return first;
  }
  if (verdict == Verdict::kClosed || now >= candidate->deadline()) candidate.reset();
  return std::nullopt;
}

std::string Connector::failure_text() const {
  std::string text;
  for (const Address& address : addresses_) {
    const auto known = failures_.find(address.text());
    text += text.empty() ? "" : ", ";
    text += address.text() + " (" +
            (known == failures_.end() ? std::string("no answer") : known->second) + ")";
  }
  return text;
}

Clock::time_point Connector::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  if (wanted_since_) {
    next = *wanted_since_ + options_.connect_timeout;
    if (!dialer_ && !dialed_ && !accepted_) next = std::min(next, retry_at_);
  }
  if (dialer_) next = std::min(next, dialer_->next_timer());
  for (const auto* candidate : {&dialed_, &accepted_}) {
    if (*candidate) next = std::min(next, (*candidate)->deadline());
  }
  return next;
}

std::chrono::milliseconds Connector::waited(Clock::time_point now) const {
  const Clock::time_point since = wanted_since_.value_or(now);
  return std::chrono::duration_cast<std::chrono::milliseconds>(now - since);
}

void Connector::stop() {
  wanted_since_.reset();
  dialer_.reset();
  dialed_.reset();
  accepted_.reset();
}

void Connector::abandon() noexcept {
  if (dialer_) dialer_->abandon();
  for (auto* candidate : {&dialed_, &accepted_}) {
    if (*candidate) (*candidate)->abandon();
  }
}

}  // namespace bluecomm::stream
