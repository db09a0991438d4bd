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

// How NCCL's own socket transport moves a message, written anew, to be measured beside
// the plugin: nothing begins before test() reaches a request, so one message at a time
// is under way; its length goes over a control socket, and its bytes in equal pieces
// over the data sockets, each moved by the helper thread that it belongs to; without
// data sockets, which is NCCL's default, all bytes follow on the control socket.
class SocketStrategy {
 public:
  struct SocketRequest {
    bool used = false;
    bool announced = false;
    std::byte* data = nullptr;
    std::size_t size = 0;    // of the receiver: first what it has posted
    std::size_t offset = 0;  // without data sockets: bytes moved
    std::atomic<int> pieces_left = 0;
  };

  // `sends`: which end this is. `threads` * `sockets` data sockets.
  SocketStrategy(bool sends, UniqueFd control, std::vector<UniqueFd> data, int threads);
  ~SocketStrategy();

  // Null: all slots are taken.
  SocketRequest* post(std::byte* data, std::size_t size);
  // Only the oldest request may be asked for. Throws std::runtime_error.
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
