#include "transport/tcp/dialer.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/tcp/socket.h"

namespace bluecomm::tcp {

Dialer::Dialer(Poller& poller, const TcpOptions& options, const Hello& hello,
               const std::vector<Address>& addresses, Clock::time_point now)
    : poller_(poller),
      options_(options),
      hello_(hello),
      addresses_(addresses),
      next_start_(now),
      sockets_(static_cast<std::size_t>(options.streams)),
      missing_(sockets_.size()) {
  hello_.streams = static_cast<std::uint32_t>(options.streams);
  hello_.group = random_nonce();
}

void Dialer::start(const Address& address, std::size_t stream, Clock::time_point now) {
  UniqueFd fd;
  if (const int error = start_connecting(address, fd); error != 0) {
    if (error != ECONNREFUSED) refused_ = false;
    note_failure(address, error_text(error));
    return;
  }
  prepare_stream(fd.get(), options_.silence_timeout);
  hello_.stream = static_cast<std::uint32_t>(stream);
  hello_.nonce = random_nonce();
  Watch watch(poller_, fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  attempts_.push_back({&address, stream, std::move(fd), std::move(watch),
                       Handshake::dial(options_.key, hello_),
                       now + options_.handshake_timeout});
}

void Dialer::advance(Clock::time_point now) {
  if (state_ != State::kRunning) return;
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto current = attempt++;
    if (const auto failure = step(*current, now)) {
      note_failure(*current->address, *failure);
      attempts_.erase(current);
    } else if (winner_ == nullptr && current->handshake.greeted()) {
      keep_winner(*current, now);
      attempt = attempts_.begin();
    } else if (current->handshake.state() == Handshake::State::kDone) {
      current->watch = {};
      sockets_[current->stream] = std::move(current->fd);
      --missing_;
      attempts_.erase(current);
    }
  }
  while (winner_ == nullptr && next_address_ < addresses_.size() &&
         (now >= next_start_ || attempts_.empty())) {
    next_start_ = now + options_.stagger;
    start(addresses_[next_address_++], 0, now);
  }
  if (missing_ == 0) {
    state_ = State::kDone;
  } else if (attempts_.size() < (winner_ != nullptr ? missing_ : 1)) {
    state_ = State::kFailed;
  }
}

std::optional<std::string> Dialer::step(Attempt& attempt, Clock::time_point now) {
  if (attempt.watch.take_events() != 0) {
    if (!attempt.connected) {
      const int error = connect_error(attempt.fd.get());
      if (error != ECONNREFUSED) refused_ = false;
      if (error != 0) return error_text(error);
      attempt.connected = true;
    }
    if (const auto failure = drive(attempt.fd.get(), attempt.handshake)) return failure;
  }
  if (now < attempt.deadline) return std::nullopt;
  refused_ = false;
  return attempt.connected ? "no answer to the handshake" : "no answer";
}

// The other addresses are not needed any more; the other streams go to this one.
void Dialer::keep_winner(Attempt& attempt, Clock::time_point now) {
  winner_ = attempt.address;
  attempts_.remove_if([&](const Attempt& other) { return &other != &attempt; });
  for (std::size_t stream = 1; stream < sockets_.size(); ++stream) {
    start(*winner_, stream, now);
  }
}

void Dialer::note_failure(const Address& address, const std::string& why) {
  failures_[address.text()] = why;
}

Clock::time_point Dialer::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  if (state_ != State::kRunning) return Clock::time_point::min();
  if (winner_ == nullptr && next_address_ < addresses_.size()) next = next_start_;
  for (const Attempt& attempt : attempts_) next = std::min(next, attempt.deadline);
  return next;
}

void Dialer::abandon() noexcept {
  for (Attempt& attempt : attempts_) attempt.fd.reset();
  for (UniqueFd& socket : sockets_) socket.reset();
}

}  // namespace bluecomm::tcp
