#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace bluecomm::test {

// What two processes have in common that measure a way of moving messages: a socket
// pair between them. Both throw std::runtime_error if the other one is gone.
void send_bytes(int control, const void* data, std::size_t nbytes);
void receive_bytes(int control, void* data, std::size_t nbytes);

struct ChannelSettings {
  // "plugin"; "socket": as NCCL does it; "plain": one TCP connection with nothing on it
  // but the bytes of messages, all of one length.
  std::string kind = "plugin";
  // Of "socket": data sockets in all, and threads that move them.
  int sockets = 0;
  int threads = 0;
  // Connections but the plugin's dial from ports of which the last bit but one is that
  // digit of `ports` whose turn it is; empty: from any.
  std::string ports;
  std::string interface = "lo";
};

// One end of a channel in both directions, as NCCL's progress thread uses it.
class BenchChannel {
 public:
  virtual ~BenchChannel() = default;
  virtual void* isend(std::byte* data, std::size_t size) = 0;  // null: busy
  virtual void* irecv(std::byte* data, std::size_t size) = 0;
  // Of the oldest request of its direction.
  virtual bool test_sent(void* request) = 0;
  virtual bool test_received(void* request, std::size_t* size) = 0;
  // No message follows: the other end receives one of 0 or 1 bytes.
  virtual void* isend_end(std::byte* data) { return isend(data, 1); }
};

// Connects to the other process, which calls it too.
std::unique_ptr<BenchChannel> open_bench_channel(int control,
                                                 const ChannelSettings& settings);

}  // namespace bluecomm::test
