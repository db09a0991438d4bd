#include "nccl_net/acceptor.h"

#include <utility>

#include "stream/socket.h"

namespace bluecomm::nccl_net {
namespace {

constexpr std::size_t kMaxWaiting = 1024;  // in each of the two queues

Identity make_identity(const stream::Nonce& name, const Device& device,
                       const Settings& settings) {
  Identity identity = identity_of(name, settings);
  std::string host = device.address.text();  // "10.0.0.2:0", "[fe80::1%eth0]:0"
  host.erase(host.rfind(':'));
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  identity.options.addresses = {host};
  return identity;
}

}  // namespace

Acceptor::Acceptor(const Device& device, const Settings& settings)
    : Acceptor(stream::random_nonce(), device, settings) {}

Acceptor::Acceptor(const stream::Nonce& name, const Device& device,
                   const Settings& settings)
    : identity_(make_identity(name, device, settings)),
      // A connection is accepted if its hello names the same peers and job as the
      // sender's.
      listener_(poller_, identity_.options, identity_.sender),
      handle_(name, listener_.addresses().front(), settings.key) {}

void Acceptor::maintain(Clock::time_point now) {
  poller_.collect();
  std::vector<stream::AcceptedConnection> admitted;
  listener_.advance(now, admitted);
  for (stream::AcceptedConnection& one : admitted) {
    const bool is_new = one.hello.stream == 0;
    auto& queue = is_new ? newcomers_ : streams_;
    if ((is_new && closed_) || queue.size() >= kMaxWaiting) continue;
    queue.push_back(std::move(one));
  }
}

void Acceptor::advance() {
  const LockGuard lock(mutex);
  maintain(Clock::now());
}

std::vector<stream::AcceptedConnection> Acceptor::take_newcomers() {
  const LockGuard lock(mutex);
  return std::exchange(newcomers_, {});
}

std::vector<stream::AcceptedConnection> Acceptor::take_streams(
    const stream::Nonce& group) {
  const LockGuard lock(mutex);
  std::vector<stream::AcceptedConnection> taken;
  for (auto one = streams_.begin(); one != streams_.end();) {
    if (one->hello.group != group) {
      ++one;
      continue;
    }
    taken.push_back(std::move(*one));
    one = streams_.erase(one);
  }
  return taken;
}

void Acceptor::close() {
  const LockGuard lock(mutex);
  closed_ = true;
  newcomers_.clear();
}

void Acceptor::abandon() noexcept NO_THREAD_SAFETY_ANALYSIS {
  poller_.abandon();
  listener_.abandon();
  for (auto* queue : {&newcomers_, &streams_}) {
    for (stream::AcceptedConnection& one : *queue) one.socket.fd.reset();
  }
}

}  // namespace bluecomm::nccl_net
