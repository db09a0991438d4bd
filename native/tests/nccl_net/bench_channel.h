#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace bluecomm::test {

// Exchange bytes over `control`, the socket pair between the two processes of the
// benchmark. Both throw std::runtime_error if the other process has ended.
void send_bytes(int control, const void* data, std::size_t nbytes);
void receive_bytes(int control, void* data, std::size_t nbytes);

struct ChannelSettings {
  // "plugin"; "socket": NCCL's socket transport; "plain": one TCP connection that
  // carries only the bytes of messages, all of the same length.
  std::string kind = "plugin";
  // For "socket": the number of data sockets, and of threads that move their data.
  int sockets = 0;
  int threads = 0;
  // Connections other than the plugin's use local ports whose second-lowest bit is the
  // next digit of `ports`, in turn. Empty: any port.
  std::string ports;
  std::string interface = "lo";
};

// One end of a channel that carries messages in both directions.
class BenchChannel {
 public:
  virtual ~BenchChannel() = default;
  virtual void* isend(std::byte* data, std::size_t size) = 0;  // null if busy
  virtual void* irecv(std::byte* data, std::size_t size) = 0;
  // May be called for the oldest request of a direction.
  virtual bool test_sent(void* request) = 0;
  virtual bool test_received(void* request, std::size_t* size) = 0;
  // Sends the last message, of 0 or 1 bytes.
  virtual void* isend_end(std::byte* data) { return isend(data, 1); }
};

// Connects to the other process, which must call this function, too.
std::unique_ptr<BenchChannel> open_bench_channel(int control,
                                                 const ChannelSettings& settings);

}  // namespace bluecomm::test
