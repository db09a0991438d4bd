#include "transport/tcp/transport.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "common/sha256.h"

namespace bluecomm {
namespace {

using Clock = std::chrono::steady_clock;

// A transport without channels that does not sleep checks for strangers' connections
// this often.
constexpr std::chrono::milliseconds kLookEvery{1};

// The longest time between two checks of the links for silence.
constexpr std::chrono::milliseconds kCheckEvery{500};

TcpOptions checked(TcpOptions options) {
  if (options.key.empty()) {
    throw std::invalid_argument("tcp: expected the job's key, got an empty one");
  }
  if (options.streams < 0 || options.streams > stream::kMaxStreams) {
    throw std::invalid_argument("tcp: expected 0 (auto) to 16 streams, got " +
                                std::to_string(options.streams));
  }
  if (options.encryption != stream::Encryption::kOff) {
    try {
      stream::libcrypto();
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(
          "rank " + std::to_string(options.rank) + ": BLUECOMM_ENCRYPTION is " +
          std::string(stream::name_of(options.encryption)) + ", but " + error.what());
    }
  }
  options.eager_bytes = std::min(options.eager_bytes, stream::kEagerCredit / 4);
  return options;
}

stream::Hello own_hello(const TcpOptions& options) {
  stream::Hello hello;
  hello.from = hello.to = options.rank;
  hello.epoch = options.epoch;
  hello.encryption = options.encryption;
  hello.job = sha256(std::as_bytes(std::span(options.job)));
  return hello;
}

}  // namespace

TcpTransport::TcpTransport(TcpOptions options)
    : options_(checked(std::move(options))),
      hello_(own_hello(options_)),
      listener_(poller_, options_, hello_),
      pool_(std::make_shared<stream::SegmentPool>()),
      next_check_(Clock::now()),
      next_look_(next_check_) {}

TcpTransport::~TcpTransport() = default;

std::string TcpTransport::offer() const {
  return stream::format_offer(listener_.addresses());
}

Channel& TcpTransport::channel(int peer, std::string_view offer) {
  const auto found = channels_.find(peer);
  if (found != channels_.end()) return *found->second;
  stream::Hello hello = hello_;
  hello.to = peer;
  auto channel = std::make_unique<tcp::TcpChannel>(poller_, options_, hello,
                                                   stream::parse_offer(offer), pool_);
  return *channels_.emplace(peer, std::move(channel)).first->second;
}

bool TcpTransport::poll(Receiver& receiver) {
  const Clock::time_point now = Clock::now();
  // If no peer is reached over tcp, only strangers may connect, and there is no reason
  // to check for them at every poll.
  const bool was_woken = std::exchange(woken_, false);
  if (channels_.empty() && !was_woken && now < next_look_) return false;
  next_look_ = now + kLookEvery;
  poller_.collect();
  bool changed = admit_all(now);
  check_silence(now);
  for (const auto& [peer, channel] : channels_)
    changed |= channel->connection().advance(now);
  // Reports only after all channels have advanced, because the receiver may call any
  // function of any channel.
  for (const auto& [peer, channel] : channels_) changed |= channel->report(receiver);
  return changed;
}

bool TcpTransport::admit_all(Clock::time_point now) {
  std::vector<stream::AcceptedConnection> admitted;
  listener_.advance(now, admitted);
  for (stream::AcceptedConnection& one : admitted) {
    const auto found = channels_.find(one.hello.from);
    const bool wanted =
        found != channels_.end() &&
        found->second->connection().admit(one.hello, std::move(one.socket), now);
    if (!wanted) ++unwanted_;
  }
  return !admitted.empty();
}

void TcpTransport::check_silence(Clock::time_point now) {
  if (now < next_check_) return;
  next_check_ = now + std::min(options_.silence_timeout / 4, kCheckEvery);
  for (const auto& [peer, channel] : channels_) channel->connection().check_silence();
}

bool TcpTransport::has_unsent() const {
  return std::any_of(channels_.begin(), channels_.end(), [](const auto& entry) {
    return entry.second->connection().has_unsent();
  });
}

bool TcpTransport::prepare_sleep() {
  if (next_timer() <= Clock::now()) return false;
  return std::none_of(channels_.begin(), channels_.end(), [](const auto& entry) {
    return entry.second->connection().busy();
  });
}

Clock::time_point TcpTransport::next_timer() const {
  Clock::time_point next = std::min(next_check_, listener_.next_timer());
  for (const auto& [peer, channel] : channels_) {
    next = std::min(next, channel->connection().next_timer());
  }
  return next;
}

void TcpTransport::forget(int peer) {
  const auto found = channels_.find(peer);
  if (found != channels_.end()) found->second->connection().forget();
}

void TcpTransport::close() {
  for (const auto& [peer, channel] : channels_) channel->connection().close();
}

bool TcpTransport::closed() const {
  return std::all_of(channels_.begin(), channels_.end(), [](const auto& entry) {
    return entry.second->connection().closed();
  });
}

void TcpTransport::abandon_after_fork() noexcept {
  poller_.abandon();
  listener_.abandon();
  for (const auto& [peer, channel] : channels_) channel->connection().abandon();
}

}  // namespace bluecomm
