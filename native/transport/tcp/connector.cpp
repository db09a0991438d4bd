#include "transport/tcp/connector.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace bluecomm::tcp {
namespace {

constexpr std::chrono::milliseconds kMaxRetryDelay{1000};

}  // namespace

Connector::Connector(Poller& poller, const TcpOptions& options, const Hello& hello,
                     std::vector<Address> addresses)
    : poller_(poller),
      options_(options),
      hello_(hello),
      addresses_(std::move(addresses)) {}

void Connector::want(Clock::time_point now) {
  if (!wanted_since_) wanted_since_ = now;
}

void Connector::admit(const Hello& hello, UniqueFd fd, Clock::time_point now) {
  // A peer that dials anew has given its former group up.
  if (!accepted_ || accepted_->nonce != hello.group ||
      accepted_->sockets.size() != hello.streams) {
    accepted_ = Group{};
    accepted_->nonce = hello.group;
    accepted_->sockets.resize(hello.streams);
    accepted_->missing = hello.streams;
    accepted_->deadline = now + options_.handshake_timeout;
  }
  UniqueFd& socket = accepted_->sockets[hello.stream];
  if (socket) return;
  socket = std::move(fd);
  --accepted_->missing;
}

std::optional<std::vector<UniqueFd>> Connector::advance(Clock::time_point now) {
  if (auto chosen = check(accepted_, now)) return chosen;
  if (dialer_) {
    advance_dialer(now);
  } else if (wanted_since_ && !dialled_ && !accepted_ && now >= retry_at_) {
    dialer_.emplace(poller_, options_, hello_, addresses_, now);
    dialer_->advance(now);
  }
  const bool had_dialled = dialled_.has_value();
  if (auto chosen = check(dialled_, now)) return chosen;
  if (had_dialled && !dialled_) retry_later(now);

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
    dialled_ = Group{};
    dialled_->sockets = dialer_->take_sockets();
    dialled_->deadline = now + options_.connect_timeout;
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

// Returns the group if it is the link; drops it if it will not be.
std::optional<std::vector<UniqueFd>> Connector::check(std::optional<Group>& group,
                                                      Clock::time_point now) {
  if (!group) return std::nullopt;
  if (group->missing == 0) {
    const Word word = decides() ? Word::kOpen : hear(*group);
    if (word == Word::kOpen) {
      group->watch = {};
      auto sockets = std::move(group->sockets);
      group.reset();
      return sockets;
    }
    if (word == Word::kGone) {
      group.reset();
      return std::nullopt;
    }
  }
  if (now >= group->deadline) group.reset();
  return std::nullopt;
}

Connector::Word Connector::hear(Group& group) {
  const int fd = group.sockets[0].get();
  if (group.received == 0 && group.watch.empty()) {
    group.watch = Watch(poller_, fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
  }
  while (group.received < group.open.size()) {
    const auto space = std::span(group.open).subspan(group.received);
    const ssize_t n = recv(fd, space.data(), space.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Word::kNone;
    if (n <= 0) return Word::kGone;
    group.received += static_cast<std::size_t>(n);
  }
  Frame frame;
  std::memcpy(&frame, group.open.data(), sizeof frame);
  const bool right = frame.kind == FrameKind::kOpen && defect_of(frame).empty();
  return right ? Word::kOpen : Word::kGone;
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
    if (!dialer_ && !dialled_ && !accepted_) next = std::min(next, retry_at_);
  }
  if (dialer_) next = std::min(next, dialer_->next_timer());
  for (const auto* group : {&dialled_, &accepted_}) {
    if (*group) next = std::min(next, (*group)->deadline);
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
  dialled_.reset();
  accepted_.reset();
}

void Connector::abandon() noexcept {
  if (dialer_) dialer_->abandon();
  for (auto* group : {&dialled_, &accepted_}) {
    if (!*group) continue;
    for (UniqueFd& socket : (*group)->sockets) socket.reset();
  }
}

}  // namespace bluecomm::tcp
