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

// A reimplementation of NCCL's own socket transport, to compare the plugin with. A
// message starts only when test() reaches its request, so one message is in transit at
// a time. Its length goes over a control socket, and its bytes go in equal pieces over
// the data sockets, each moved by a helper thread. Without data sockets, which is
// NCCL's default, all bytes follow on the control socket.
class SocketStrategy {
 public:
  struct SocketRequest {
    bool used = false;
    bool announced = false;
    std::byte* data = nullptr;
    std::size_t size = 0;    // at the receiver, first the size of the buffer
    std::size_t offset = 0;  // bytes moved, without data sockets
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
  bool announce(SocketRequest& request);
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
