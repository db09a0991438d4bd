#include "transport/tcp/tcp_channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "transport/tcp/socket.h"

namespace bluecomm::tcp {
namespace {

std::string seconds_text(std::chrono::milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s",
                static_cast<double>(duration.count()) / 1000);
  return text;
}

}  // namespace

TcpChannel::TcpChannel(Poller& poller, const TcpOptions& options, const Hello& hello,
                       std::vector<Address> addresses,
                       std::shared_ptr<SegmentPool> pool)
    : poller_(poller),
      options_(options),
      peer_(hello.to),
      connector_(poller, options, hello, std::move(addresses)),
      link_(options.eager_bytes, std::move(pool)) {}

std::unique_ptr<Outgoing> TcpChannel::send(const Header& header,
                                           std::span<const std::byte> payload) {
  return link_.send(header, payload);
}

void TcpChannel::post(const Header& header, std::span<const std::byte> payload) {
  link_.post(header, payload);
}

bool TcpChannel::admit(const Hello& hello, UniqueFd fd, Clock::time_point now) {
  if (state_ != State::kConnecting || (closing_ && !link_.is_wanted())) return false;
  connector_.admit(hello, std::move(fd), now);
  return true;
}

bool TcpChannel::advance(Clock::time_point now) {
  if (state_ == State::kConnecting && advance_connector(now)) return true;
  return state_ == State::kOpen && advance_link();
}

bool TcpChannel::advance_connector(Clock::time_point now) {
  if (link_.is_wanted()) connector_.want(now);
  if (connector_.is_idle()) return false;
  auto sockets = connector_.advance(now);
  if (sockets) {
    Streams::Set streams;
    for (UniqueFd& socket : *sockets) {
      watches_.emplace_back(poller_, socket.get(),
                            EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
      streams.emplace_back(std::move(socket), streams.size());
    }
    connector_.stop();
    link_.open(std::move(streams), connector_.decides());
    state_ = State::kOpen;
    advance_link();
    return true;
  }
  if (const auto& failure = connector_.failure()) {
    lose("cannot connect to rank " + std::to_string(peer_) + " within " +
         seconds_text(connector_.waited(now)) + ": " + *failure);
    return true;
  }
  return false;
}

bool TcpChannel::advance_link() {
  for (std::size_t i = 0; i < watches_.size(); ++i) {
    const std::uint32_t events = watches_[i].take_events();
    if (events == 0) continue;
    Stream& stream = link_.streams()[i];
    stream.hung_up |= (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    stream.readable |= (events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0;
    stream.writable |= (events & EPOLLOUT) != 0;
  }
  if (!link_.busy()) return false;
  const bool moved = link_.progress();
  if (const auto& ended = link_.ended()) {
    if (ended->empty()) {
      let_go();
    } else {
      lose("lost the connection to rank " + std::to_string(peer_) + ": " + *ended);
    }
  }
  return moved;
}

bool TcpChannel::report(Receiver& receiver) {
  bool any = false;
  while (auto message = link_.take_arrived()) {
    any = true;
    receiver.on_message(peer_, std::move(message));
  }
  if (told_) return any;
  if (link_.peer_finished()) {
    told_ = any = true;
    receiver.on_goodbye(peer_);
  } else if (lost_) {
    told_ = any = true;
    receiver.on_lost(peer_, Status{Code::kPeerLost, *lost_, peer_});
  }
  return any;
}

bool TcpChannel::busy() const {
  if (link_.has_arrived()) return true;
  if (!told_ && (lost_ || link_.peer_finished())) return true;
  return state_ == State::kOpen && link_.busy();
}

Clock::time_point TcpChannel::next_timer() const {
  if (state_ != State::kConnecting) return Clock::time_point::max();
  const bool news = link_.is_wanted() && !connector_.is_wanted();
  return news ? Clock::time_point::min() : connector_.next_timer();
}

void TcpChannel::check_silence() {
  if (state_ != State::kOpen) return;
  const auto& streams = link_.streams();
  const auto silent =
      std::find_if(streams.begin(), streams.end(), [this](const Stream& stream) {
        return is_silent(stream.fd(), options_.silence_timeout);
      });
  if (silent == streams.end()) return;
  lose("lost the connection to rank " + std::to_string(peer_) + ": " + silent->peer() +
       ": nothing was acknowledged for " + seconds_text(options_.silence_timeout) +
       "; the machine or the network is down");
}

void TcpChannel::lose(std::string text) {
  lost_ = std::move(text);
  let_go();
}

void TcpChannel::let_go() {
  state_ = State::kGone;
  watches_.clear();
  link_.end();
  connector_.stop();
}

void TcpChannel::forget() {
  told_ = true;
  let_go();
}

void TcpChannel::close() {
  closing_ = true;
  link_.say_goodbye();
  if (state_ == State::kConnecting && !link_.is_wanted()) let_go();
}

bool TcpChannel::closed() const {
  return closing_ && (state_ == State::kGone || link_.goodbye_seen());
}

void TcpChannel::abandon() noexcept {
  connector_.abandon();
  link_.abandon();
}

}  // namespace bluecomm::tcp
