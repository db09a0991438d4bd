#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "nccl_net/cpus.h"
#include "nccl_net/devices.h"
#include "nccl_net/listen_comm.h"
#include "nccl_net/send_comm.h"
#include "nccl_net/settings.h"
#include "stream/stream_count.h"

namespace bluecomm::nccl_net {

// The plugin's state in this process: devices, settings and open comms. NCCL may call
// from any thread. Calls that move data (isend, irecv, test) go to the comm directly.
class Plugin {
 public:
  // Returns the plugin of this process. It is never freed, because NCCL keeps pointers
  // into it.
  static Plugin& get();

  // Reads settings and devices at the first call. Throws if the plugin cannot be used
  // here.
  void open(abi::Logger* logger) EXCLUDES(mutex_);

  const std::vector<Device>& devices() const { return devices_; }
  // Throws Failure if the number is out of range.
  Device& device(int number);

  MaintainedPtr<ListenComm> listen(int device, void* handle);
  // Returns null while the connection is opening; NCCL then calls again with the same
  // memory.
  SendComm* connect(int device, void* handle) EXCLUDES(mutex_);
  // Returns null while no sender has connected.
  RecvComm* accept(ListenComm& listen_comm) EXCLUDES(mutex_);
  void close(Comm* comm) EXCLUDES(mutex_);

  // Returns the traffic of each connection and each of its streams, as JSON.
  std::string counters() EXCLUDES(mutex_);

  // Called around a fork: see fork.h.
  void before_fork() ACQUIRE(mutex_) { mutex_.lock(); }
  void after_fork() RELEASE(mutex_) { mutex_.unlock(); }

  void log(abi::LogLevel level, const std::string& text) const;

 private:
  // A connection that connect() has started but not returned yet.
  struct PendingConnect {
    MaintainedPtr<SendComm> comm;
    Clock::time_point called_at;
  };

  // Returns the pending connect of `handle`, or starts one.
  PendingConnect take_pending_connect(const ListenHandle& handle, int number)
      EXCLUDES(mutex_);
  // Returns the count shared by all connections from device `number` to the peer's
  // host.
  std::shared_ptr<stream::StreamCount> stream_count(stream::Address peer, int number)
      EXCLUDES(mutex_);
  void drop_forgotten_connects(Clock::time_point now) EXCLUDES(mutex_);
  // Lists an open comm and passes its ownership to NCCL.
  template <typename T>
  T* adopt(MaintainedPtr<T> comm) EXCLUDES(mutex_);
  void assign_to_thread(Comm& comm);

  std::atomic<abi::Logger*> logger_ = nullptr;
  // Locked before the mutexes of the IoThreadPool, the Housekeeper and any Maintained.
  Mutex mutex_;
  bool is_open_ GUARDED_BY(mutex_) = false;
  // open() sets these four once, before NCCL makes any other call.
  Settings settings_;
  std::vector<Device> devices_;
  CpuSet cpus_;
  int threads_ = 0;
  std::map<std::uint64_t, PendingConnect> pending_connects_ GUARDED_BY(mutex_);
  std::uint64_t last_connect_id_ GUARDED_BY(mutex_) = 0;
  std::map<std::pair<int, std::string>, std::weak_ptr<stream::StreamCount>> counts_
      GUARDED_BY(mutex_);
  struct OpenComm {
    std::uint64_t number;
    Comm* comm;
  };
  std::vector<OpenComm> comms_ GUARDED_BY(mutex_);
  std::uint64_t last_number_ GUARDED_BY(mutex_) = 0;
};

}  // namespace bluecomm::nccl_net
