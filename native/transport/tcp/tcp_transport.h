#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/channel.h"
#include "transport/tcp/listener.h"
#include "transport/tcp/options.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/segment_pool.h"
#include "transport/tcp/tcp_channel.h"

namespace bluecomm {

// Transport between machines: a few TCP streams per peer, opened by a keyed handshake.
// No thread; everything happens in poll().
class TcpTransport final : public Transport {
 public:
  // Opens the listening sockets. Throws std::invalid_argument if an option is wrong,
  // std::runtime_error if it can listen nowhere.
  explicit TcpTransport(TcpOptions options);
  ~TcpTransport() override;

  std::string_view name() const override { return "tcp"; }
  // "10.0.0.2:4711,[2001:db8::1]:4711".
  std::string offer() const override;
  // Throws std::invalid_argument if `offer` is none.
  Channel& channel(int peer, std::string_view offer) override;

  bool poll(Receiver& receiver) override;
  int wait_fd() const override { return poller_.fd(); }
  bool prepare_sleep() override;
  void finish_sleep() override {}
  std::chrono::steady_clock::time_point next_timer() const override;

  void forget(int peer) override;
  void close() override;
  bool closed() const override;
  void abandon_after_fork() noexcept override;

  // Connections that did not belong here and were put out.
  std::uint64_t rejected() const { return listener_.rejected() + unwanted_; }

 private:
  bool admit_all(std::chrono::steady_clock::time_point now);
  void check_silence(std::chrono::steady_clock::time_point now);

  const TcpOptions options_;
  const tcp::Hello hello_;
  tcp::Poller poller_;
  tcp::Listener listener_;
  std::shared_ptr<tcp::SegmentPool> pool_;
  std::map<int, std::unique_ptr<tcp::TcpChannel>> channels_;
  std::chrono::steady_clock::time_point next_check_;
  std::uint64_t unwanted_ = 0;
};

}  // namespace bluecomm
