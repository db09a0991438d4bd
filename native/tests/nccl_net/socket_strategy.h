#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/fd.h"

namespace bluecomm::test {

// A reimplementation of NCCL's own socket transport (src/transport/net_socket.cc of
// NCCL 2.28), to compare the plugin with. A message starts only when test() reaches its
// request, so one message is in transit at a time. Its length goes over a control
// socket, with the bytes of a message of up to 128 bytes. The other bytes go in equal
// pieces over the data sockets, each moved by a helper thread. Without data sockets,
// which is NCCL's default, they follow on the control socket. Each test() calls send()
// or recv() until the message has been moved or the call would block. The sockets have
// TCP_NODELAY and otherwise the kernel's settings.
class SocketStrategy {
 public:
  struct SocketRequest {
    bool used = false;
    bool announced = false;
    std::byte* data = nullptr;
    std::size_t size = 0;    // at the receiver, first the size of the buffer
    std::size_t offset = 0;  // bytes moved, those over data sockets excepted
    std::atomic<int> pieces_left = 0;
  };

  // `sends` says which end this is.
  SocketStrategy(bool sends, UniqueFd control, std::vector<UniqueFd> data, int threads);
  ~SocketStrategy();

  // Returns null if all slots are taken.
  SocketRequest* post(std::byte* data, std::size_t size);
  // May be called for the oldest request only. Throws std::runtime_error.
  bool test(SocketRequest& request, std::size_t* size);

 private:
  struct MessagePiece {
    int fd;
    std::byte* data;
    std::size_t size;
    std::size_t offset;
    SocketRequest* request;
  };
  struct Helper {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<MessagePiece> pieces;
    bool stop = false;
    std::thread thread;
  };

  std::size_t move(int fd, std::byte* data, std::size_t size) const;
  void move_all(std::byte* data, std::size_t size) const;
  bool announce(SocketRequest& request);
  bool send_head(SocketRequest& request);
  bool receive_head(SocketRequest& request);
  void split(SocketRequest& request);
  void help(Helper& helper) const;

  const bool sends_;
  const UniqueFd control_;
  const std::vector<UniqueFd> data_;
  std::array<SocketRequest, 32> requests_;
  std::size_t next_socket_ = 0;
  std::vector<std::unique_ptr<Helper>> helpers_;
};

}  // namespace bluecomm::test
