#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "stream/listener.h"
#include "stream/poller.h"
#include "stream/segment_pool.h"
#include "transport/channel.h"
#include "transport/tcp/channel.h"
#include "transport/tcp/options.h"

namespace bluecomm {

// The transport between machines: one TCP stream per peer, or several if they are
// faster, each opened by a keyed handshake. It has no thread: everything happens in
// poll(). The protocol is that of native/stream, whose Connection contains the outbox,
// the inbox and the frames of a channel.
class TcpTransport final : public Transport {
 public:
  // Opens the listening sockets. Throws std::invalid_argument if an option is wrong,
  // and std::runtime_error if it cannot listen on any address, or cannot encrypt.
  explicit TcpTransport(TcpOptions options);
  ~TcpTransport() override;

  std::string_view name() const override { return "tcp"; }
  // Its listening addresses, such as "10.0.0.2:4711,[2001:db8::1]:4711".
  std::string offer() const override;
  // Throws std::invalid_argument if `offer` is not the offer of a tcp transport.
  Channel& channel(int peer, std::string_view offer) override;

  bool poll(Receiver& receiver) override;
  int wait_fd() const override { return poller_.fd(); }
  bool has_unsent() const override;
  bool prepare_sleep() override;
  void finish_sleep() override { woken_ = true; }
  std::chrono::steady_clock::time_point next_timer() const override;

  void forget(int peer) override;
  void close() override;
  bool closed() const override;
  void abandon_after_fork() noexcept override;

  // The number of connections that were closed because they did not belong here.
  std::uint64_t rejected() const { return listener_.rejected() + unwanted_; }

 private:
  bool admit_all(std::chrono::steady_clock::time_point now);
  void check_silence(std::chrono::steady_clock::time_point now);

  const TcpOptions options_;
  const stream::Hello hello_;
  stream::Poller poller_;
  stream::Listener listener_;
  std::shared_ptr<stream::SegmentPool> pool_;
  std::map<int, std::unique_ptr<tcp::TcpChannel>> channels_;
  std::chrono::steady_clock::time_point next_check_;
  std::chrono::steady_clock::time_point next_look_;
  bool woken_ = false;
  std::uint64_t unwanted_ = 0;
};

}  // namespace bluecomm
