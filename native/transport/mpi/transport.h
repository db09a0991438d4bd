#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "transport/channel.h"
#include "transport/mpi/channel.h"
#include "transport/mpi/options.h"
#include "transport/mpi/port.h"

namespace bluecomm {

// The transport over the point-to-point messages of MPI, on a communicator of its own.
//
// MPI has no descriptor to sleep on, and moves messages only while it is called. So a
// rank that waits polls for kAwake, which is about the cost of a short sleep, and then
// sleeps between polls: for a quarter of the time for which nothing has happened, up
// to kLongestNap. So a long wait takes at most a quarter longer, and hardly any
// processor time.
class MpiTransport final : public Transport {
 public:
  // Throws std::invalid_argument if an option is wrong.
  explicit MpiTransport(MpiOptions options);
  ~MpiTransport() override;

  std::string_view name() const override { return "mpi"; }
  std::string offer() const override { return port_.address().text(); }
  // Throws std::invalid_argument if `offer` is not the offer of an mpi transport.
  Channel& channel(int peer, std::string_view offer) override;

  bool poll(Receiver& receiver) override;
  int wait_fd() const override { return -1; }
  bool prepare_sleep() override;
  void finish_sleep() override {}
  std::chrono::steady_clock::time_point next_timer() const override;

  void forget(int peer) override;
  void close() override;
  bool closed() const override;
  void release_backend() override;
  void abandon_after_fork() noexcept override { port_.abandon_after_fork(); }

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kAwake{100};
  static constexpr std::chrono::microseconds kLongestNap{1000};

  bool take_frame();
  bool poll_mpi();

  const MpiOptions options_;
  mpi::Port port_;
  std::map<int, std::unique_ptr<mpi::MpiChannel>> channels_;
  int frames_ = 0;  // taken since poll_requests() was last called
  Clock::time_point last_poll_;
  Clock::time_point last_change_;
};

}  // namespace bluecomm
