#include "comm_checks.h"

#include <algorithm>
#include <set>

namespace fakegpu {
namespace {

struct Comms {
  std::mutex mutex;
  std::set<ncclComm_t> all;  // also destroyed ones, so that late uses are found
};

Comms& comms() {
  static Comms* const all = new Comms;
  return *all;
}

}  // namespace

ncclComm_t add_comm(int rank, int size, int device, bool is_blocking) {
  auto* const comm = new FakeComm;
  comm->rank = rank;
  comm->size = size;
  comm->device = device;
  comm->is_blocking = is_blocking;
  const std::scoped_lock lock(comms().mutex);
  comms().all.insert(comm);
  return comm;
}

bool is_comm(ncclComm_t comm, const char* function) {
  {
    const std::scoped_lock lock(comms().mutex);
    if (!comms().all.contains(comm)) {
      violation(function, "not a communicator");
      return false;
    }
  }
  const std::scoped_lock lock(comm->mutex);
  if (comm->state == CommState::kDestroyed || comm->state == CommState::kAborted) {
    violation(function, "the communicator is destroyed");
    return false;
  }
  return true;
}

ncclResult_t check_ready(ncclComm_t comm, const char* function) {
  if (!is_comm(comm, function)) return kNcclInvalidArgument;
  const std::scoped_lock lock(comm->mutex);
  if (comm->error != kNcclSuccess) return comm->error;
  if (comm->state == CommState::kReady) return kNcclSuccess;
  violation(function, comm->state == CommState::kBusy
                          ? "the communicator is in progress"
                          : "the communicator is finalized");
  return kNcclInvalidUsage;
}

void set_state(FakeComm& comm, CommState state) {
  const std::scoped_lock lock(comm.mutex);
  if (comm.state != CommState::kAborted) comm.state = state;
  comm.changed.notify_all();
}

}  // namespace fakegpu

extern "C" {

// Counts the communicators of this process that are neither destroyed nor aborted.
int fakegpu_live_comms() {
  using namespace fakegpu;  // NOLINT: this function is the library's surface
  const std::scoped_lock lock(comms().mutex);
  return static_cast<int>(std::ranges::count_if(comms().all, [](ncclComm_t comm) {
    const std::scoped_lock inner(comm->mutex);
    return comm->state != CommState::kDestroyed && comm->state != CommState::kAborted;
  }));
}

}  // extern "C"
