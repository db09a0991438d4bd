#include "stream/dial_attempt.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "stream/socket.h"

namespace bluecomm::stream {
namespace {

Hello with_nonce(Hello hello) {
  hello.nonce = random_nonce();
  return hello;
}

}  // namespace

DialAttempt::DialAttempt(Poller& poller, const Options& options, const Address& address,
                         Hello hello, Clock::time_point now)
    : address_(address),
      hello_(with_nonce(hello)),
      deadline_(now + options.handshake_timeout),
      handshake_(Handshake::dial(options.key, hello_)) {
  error_ = start_connecting(address_, fd_);
  if (error_ != 0) return;
  prepare_stream(fd_.get(), options.silence_timeout);
  watch_ = Watch(poller, fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

std::optional<std::string> DialAttempt::advance(Clock::time_point now) {
  if (error_ == 0 && watch_.take_events() != 0) {
    if (!connected_) error_ = connect_error(fd_.get());
    if (error_ == 0) {
      connected_ = true;
      if (auto failure = drive(fd_.get(), handshake_)) return failure;
    }
  }
  if (error_ != 0) {
    refused_ = error_ == ECONNREFUSED;
    return error_text(error_);
  }
  if (now < deadline_) return std::nullopt;
  return connected_ ? "no answer to the handshake" : "no answer";
}

StreamSocket DialAttempt::take_socket() {
  watch_ = {};
  return {std::move(fd_), handshake_.make_cipher()};
}

}  // namespace bluecomm::stream
