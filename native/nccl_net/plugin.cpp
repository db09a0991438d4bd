// Opens and closes listen comms, send comms and recv comms for NCCL, and lists the open
// ones for the counters.
//
// NCCL's proxy threads call from exports.cpp, possibly several at the same time.
// connect() does not block: it keeps an opening send comm in pending_connects_ between
// NCCL's calls, and stores its id in the handle, whose memory NCCL passes each time.
#include "nccl_net/plugin.h"

#include <unistd.h>

#include <cstdlib>
#include <system_error>
#include <utility>

#include "common/cores.h"
#include "nccl_net/counters.h"
#include "nccl_net/fork.h"
#include "nccl_net/io_thread_pool.h"

namespace bluecomm::nccl_net {
namespace {

// NCCL calls connect() again immediately. A connect that was not continued for this
// long is dropped.
constexpr std::chrono::minutes kForgotten{5};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Plugin& Plugin::get() {
  static Plugin* const only = new Plugin;
  return *only;
}

void Plugin::open(abi::Logger* logger) {
  const LockGuard lock(mutex_);
  logger_ = logger;
  if (is_open_) return;
  prepare_for_forks();
  settings_ = read_settings(environ);
  devices_ = find_devices({variable("NCCL_SOCKET_IFNAME"),
                           variable("NCCL_SOCKET_FAMILY"), variable("NCCL_COMM_ID")});
  cpus_ = find_cpus(variable("LOCAL_RANK"), variable("LOCAL_WORLD_SIZE"));
  threads_ =
      settings_.threads >= 0 ? settings_.threads : auto_threads(cpus_, usable_cores());
  is_open_ = true;
  std::string cards;
  for (const Device& one : devices_) cards += " " + one.name + ":" + one.address.text();
  log(abi::kInfo, "using" + cards);
}

Device& Plugin::device(int number) {
  if (number < 0 || static_cast<std::size_t>(number) >= devices_.size()) {
    throw Failure(abi::kInvalidArgument, "device " + std::to_string(number) +
                                             " does not exist; there are " +
                                             std::to_string(devices_.size()));
  }
  return devices_[static_cast<std::size_t>(number)];
}

MaintainedPtr<ListenComm> Plugin::listen(int number, void* handle) {
  auto listen_comm = make_maintained<ListenComm>(device(number), settings_);
  listen_comm->handle().write(handle);
  return listen_comm;
}

SendComm* Plugin::connect(int number, void* memory) {
  ListenHandle handle = ListenHandle::read(memory);
  // The connect is not in the table while it is advanced, so that an error drops it.
  PendingConnect pending = take_pending_connect(handle, number);
  const std::uint64_t id = std::exchange(handle.connect_id, 0);
  handle.write(memory);
  if (pending.comm->advance_opening()) return adopt(std::move(pending.comm));
  const LockGuard lock(mutex_);
  handle.connect_id = id == 0 ? ++last_connect_id_ : id;
  handle.write(memory);
  pending.called_at = Clock::now();
  pending_connects_.emplace(handle.connect_id, std::move(pending));
  return nullptr;
}

Plugin::PendingConnect Plugin::take_pending_connect(const ListenHandle& handle,
                                                    int number) {
  const Device& device = this->device(number);
  const Clock::time_point now = Clock::now();
  if (handle.connect_id == 0) {
    handle.require_key(settings_.key);
    drop_forgotten_connects(now);
    auto count = stream_count(handle.address(device), number);
    return {make_maintained<SendComm>(handle, device, settings_, std::move(count)),
            now};
  }
  const LockGuard lock(mutex_);
  const auto known = pending_connects_.extract(handle.connect_id);
  if (known.empty()) {
    throw Failure(
        abi::kInvalidUsage,
        "the handle belongs to a connect that has ended; call connect with the "
        "handle that listen returned");
  }
  return std::move(known.mapped());
}

std::shared_ptr<stream::StreamCount> Plugin::stream_count(stream::Address peer,
                                                          int number) {
  peer.set_port(0);
  const LockGuard lock(mutex_);
  std::erase_if(counts_, [](const auto& one) { return one.second.expired(); });
  auto& known = counts_[{number, peer.text()}];
  auto count = known.lock();
  if (!count) {
    known = count = std::make_shared<stream::StreamCount>(stream::kMaxAutoStreams);
  }
  return count;
}

void Plugin::drop_forgotten_connects(Clock::time_point now) {
  std::vector<PendingConnect> dropped;  // declared first: freed without the mutex
  const LockGuard lock(mutex_);
  for (auto one = pending_connects_.begin(); one != pending_connects_.end();) {
    if (now - one->second.called_at < kForgotten) {
      ++one;
      continue;
    }
    dropped.push_back(std::move(one->second));
    one = pending_connects_.erase(one);
  }
}

RecvComm* Plugin::accept(ListenComm& listen_comm) {
  auto comm = listen_comm.accept();
  return comm ? adopt(std::move(comm)) : nullptr;
}

template <typename T>
T* Plugin::adopt(MaintainedPtr<T> comm) {
  {
    const LockGuard lock(mutex_);
    comms_.push_back({++last_number_, comm.get()});
  }
  assign_to_thread(*comm);
  return comm.release();
}

void Plugin::assign_to_thread(Comm& comm) {
  if (threads_ == 0) return;
  try {
    IoThreadPool::get().add(comm, cpus_, threads_,
                            [this](const std::string& text) { log(abi::kInfo, text); });
  } catch (const std::system_error& error) {
    log(abi::kInfo,
        std::string("cannot start an I/O thread for a connection: ") + error.what());
  }
}

void Plugin::close(Comm* comm) {
  {
    const LockGuard lock(mutex_);
    std::erase_if(comms_, [comm](const OpenComm& one) { return one.comm == comm; });
  }
  const MaintainedPtr<Comm> owner(comm);
  if (threads_ > 0) IoThreadPool::get().remove(*comm);
  comm->close();
}

std::string Plugin::counters() {
  const LockGuard lock(mutex_);
  std::vector<ConnectionStats> all;
  for (const auto& [number, comm] : comms_) {
    all.push_back({number, comm->direction(), comm->stats()});
  }
  return format_counters(all);
}

void Plugin::log(abi::LogLevel level, const std::string& text) const {
  if (abi::Logger* const logger = logger_) {
    const unsigned long subsystems =
        level == abi::kWarn ? abi::kLogAll : abi::kLogInitAndNet;
    logger(level, subsystems, "bluecomm", 0, "NET/BlueComm : %s", text.c_str());
  }
}

}  // namespace bluecomm::nccl_net
