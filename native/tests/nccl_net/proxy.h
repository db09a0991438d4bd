#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "common/fd.h"

namespace bluecomm::test {

// A way over the loopback to `target` that can damage what it carries, where TCP does
// not notice. For one connection at a time; its thread ends with it.
class Proxy {
 public:
  explicit Proxy(const sockaddr_in& target);
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy();

  // To connect to instead.
  const sockaddr_in& address() const { return address_; }

  enum Direction { kToTarget, kFromTarget };
  // Flips `bits` of byte `position` of what it carries from now on.
  void damage(Direction direction, std::uint64_t position, std::byte bits);

 private:
  struct Damage {
    std::uint64_t left;  // bytes that go by before
    std::byte bits;
  };

  void serve();
  void carry(int client, int server);
  // False at the end.
  bool move(int from, int to, Direction direction);
  void apply(std::span<std::byte> bytes, Direction direction);

  const sockaddr_in target_;
  sockaddr_in address_{};
  UniqueFd listener_;
  UniqueFd stop_;  // written to when it ends
  std::mutex mutex_;
  std::optional<Damage> damages_[2];
  std::thread thread_;
};

}  // namespace bluecomm::test
