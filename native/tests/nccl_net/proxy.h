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

// A TCP proxy on the loopback that forwards one connection at a time to `target` and
// can damage bytes on the way. Its thread ends with the object.
class Proxy {
 public:
  explicit Proxy(const sockaddr_in& target);
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy();

  // The address to connect to instead of `target`.
  const sockaddr_in& address() const { return address_; }

  enum Direction { kToTarget, kFromTarget };
  // Flips `bits` of byte `position`, counted from the bytes forwarded from now on.
  void damage(Direction direction, std::uint64_t position, std::byte bits);

 private:
  struct Damage {
    std::uint64_t left;  // bytes to forward before
    std::byte bits;
  };

  void serve();
  void carry(int client, int server);
  // Returns false at the end.
  bool move(int from, int to, Direction direction);
  void apply(std::span<std::byte> bytes, Direction direction);

  const sockaddr_in target_;
  sockaddr_in address_{};
  UniqueFd listener_;
  UniqueFd stop_;  // written to by the destructor
  std::mutex mutex_;
  std::optional<Damage> damages_[2];
  std::thread thread_;
};

}  // namespace bluecomm::test
