#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "nccl_net/cpus.h"
#include "nccl_net/devices.h"
#include "nccl_net/listen_comm.h"
#include "nccl_net/send_comm.h"
#include "nccl_net/settings.h"
#include "stream/stream_count.h"

namespace bluecomm::nccl_net {

// What the process has of the plugin: cards, settings, and what is open. NCCL calls
// from any thread; calls that move data do not come through here.
class Plugin {
 public:
  // The process's; never freed, as NCCL keeps pointers into it.
  static Plugin& get();

  // Reads settings and cards the first time. Throws what makes the plugin useless here.
  void open(abi::Logger* logger);

  const std::vector<Device>& devices() const { return devices_; }
  // Throws Failure if there is no such card.
  Device& device(int number);

  MaintainedPtr<ListenComm> listen(int device, void* handle);
  // Null: called again, with the same memory, until there is one.
  SendComm* connect(int device, void* handle);
  RecvComm* accept(ListenComm& listen_comm);
  void close(Comm* comm);

  // JSON: what every connection, and every stream of it, has carried.
  std::string counters();

  // See fork.h.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

  void log(abi::LogLevel level, const std::string& text) const;

 private:
  struct PendingConnect {
    MaintainedPtr<SendComm> comm;
    Clock::time_point called_at;
  };

  PendingConnect take_pending_connect(const ListenHandle& handle, int number);
  // Of the connections that go out through the card `number` to the peer's host.
  std::shared_ptr<stream::StreamCount> stream_count(stream::Address peer, int number);
  void drop_forgotten_connects(Clock::time_point now);
  template <typename T>
  T* adopt(MaintainedPtr<T> comm);
  void give_to_thread(Comm& comm);

  std::atomic<abi::Logger*> logger_ = nullptr;
  // Before those of a IoThreadPool, of the Housekeeper and of a Maintained.
  std::mutex mutex_;
  bool is_open_ = false;  // after that, the next four do not change
  Settings settings_;
  std::vector<Device> devices_;
  CpuSet cpus_;
  int threads_ = 0;
  std::map<std::uint64_t, PendingConnect> pending_connects_;
  std::uint64_t last_connect_id_ = 0;
  std::map<std::pair<int, std::string>, std::weak_ptr<stream::StreamCount>> counts_;
  struct Adopted {
    std::uint64_t number;
    Comm* comm;
  };
  std::vector<Adopted> comms_;
  std::uint64_t last_number_ = 0;
};

}  // namespace bluecomm::nccl_net
