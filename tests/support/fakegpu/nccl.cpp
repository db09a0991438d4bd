// The fake's libnccl.so.2: the version, communicators and their life, and errors.

#include <algorithm>
#include <cstring>
#include <memory>

#include "comm.h"
#include "comm_checks.h"
#include "mesh.h"
#include "nccl_abi.h"
#include "one_sided.h"
#include "operation.h"
#include "report.h"
#include "world.h"

namespace fakegpu {
namespace {

void connect(FakeComm& comm, const ncclUniqueId& id) {
  const std::scoped_lock lock(comm.peers_mutex);
  const MeshListener listener = listen_for_ranks();
  const Introduction own = introduce(comm.rank, comm.size, comm.device, listener);
  const std::vector<Introduction> ranks = meet(comm, id, own);
  if (!ranks.empty()) connect_mesh(comm, listener, ranks);
}

// Tells all ranks of the parent which color and key this rank has, and connects those
// of its color.
void split(FakeComm& parent, FakeComm* child, int color, int key) {
  const MeshListener listener = listen_for_ranks();
  Introduction own = introduce(parent.rank, parent.size, parent.device, listener);
  own.color = color;
  own.key = key;
  std::vector<Introduction> all(static_cast<std::size_t>(parent.size));
  all[static_cast<std::size_t>(parent.rank)] = own;
  const MessageKey message{Operation::kSplit, 0, 0, 0, sizeof own, 0};
  std::vector<Message> messages;
  for (int peer = 0; peer < parent.size; ++peer) {
    if (peer == parent.rank) continue;
    auto* const from = reinterpret_cast<std::byte*>(&own);
    auto* const to = reinterpret_cast<std::byte*>(&all[static_cast<std::size_t>(peer)]);
    messages.push_back({peer, true, from, sizeof own, message});
    messages.push_back({peer, false, to, sizeof own, message});
  }
  if (!exchange_messages(parent, messages) || child == nullptr) return;
  std::vector<Introduction> members;
  for (const Introduction& one : all) {
    if (one.color == color) members.push_back(one);
  }
  std::stable_sort(members.begin(), members.end(),
                   [](const auto& a, const auto& b) { return a.key < b.key; });
  const std::scoped_lock lock(child->peers_mutex);
  child->size = static_cast<int>(members.size());
  for (int i = 0; i < child->size; ++i) {
    if (members[static_cast<std::size_t>(i)].rank == parent.rank) child->rank = i;
  }
  connect_mesh(*child, listener, members);
}

// Waits until the communicator has run all its operations. False: it has failed.
bool wait_until_idle(FakeComm& comm) {
  std::unique_lock lock(comm.mutex);
  comm.changed.wait(lock, [&] {
    return comm.served == comm.tickets || comm.error != kNcclSuccess || comm.aborted;
  });
  return comm.served == comm.tickets;
}

// Returns whether a configuration says that calls block. Throws nothing: a wrong one is
// a violation, and `*is_valid` false.
bool blocks(const ncclConfig_t* config, bool otherwise, bool* is_valid) {
  *is_valid = true;
  if (config == nullptr) return otherwise;
  if (config->magic != kConfigMagic || config->size < sizeof(ncclConfig_t) - 4 ||
      config->version < 21400 || config->blocking < 0 || config->blocking > 1) {
    violation("ncclConfig_t", "not initialized: size, magic, version or blocking");
    *is_valid = false;
  }
  return config->blocking != 0;
}

}  // namespace
}  // namespace fakegpu

using namespace fakegpu;  // NOLINT: this file is the library's surface

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (world().owner == 0) load_settings();
  const Injected injected = injected_error("ncclGetVersion");
  if (injected) return injected.code;
  *version = settings().nccl_version;
  return kNcclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Injected injected = injected_error("ncclGetUniqueId");
  if (injected) return injected.code;
  *id = make_unique_id();
  return kNcclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id,
                                    int rank, const ncclConfig_t* config) {
  const char* const function = "ncclCommInitRankConfig";
  const Injected injected = injected_error(function);
  if (injected.kind == Injected::Kind::kCode) return injected.code;
  bool is_valid = false;
  const bool is_blocking = blocks(config, true, &is_valid);
  if (!is_valid) return kNcclInvalidArgument;
  if (out == nullptr || rank < 0 || rank >= size) {
    violation(function, "rank " + std::to_string(rank) + " of " + std::to_string(size));
    return kNcclInvalidArgument;
  }
  if (current_context() == nullptr) {
    violation(function, "no context is current on this thread");
    return kNcclUnhandledCuda;
  }
  *out = add_comm(rank, size, current_context()->device, is_blocking);
  FakeComm& comm = **out;
  if (injected.kind == Injected::Kind::kAsync) {
    set_error(comm, injected.code, std::string("injected into ") + function);
  }
  return run_for(comm, [&comm, id, injected] {
    if (injected.kind == Injected::Kind::kHang) {
      std::unique_lock lock(comm.mutex);
      comm.changed.wait(lock, [&] { return comm.aborted.load(); });
    } else if (!injected) {
      connect(comm, id);
    }
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* out, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(out, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* out,
                           const ncclConfig_t* config) {
  const char* const function = "ncclCommSplit";
  const Injected injected = injected_error(function);
  if (injected) return injected.code;
  const ncclResult_t ready = check_ready(parent, function);
  if (ready != kNcclSuccess) return ready;
  const InCall in_call(parent, function);
  bool is_valid = false;
  const bool is_blocking = blocks(config, parent->is_blocking, &is_valid);
  if (!is_valid || color < -1) return kNcclInvalidArgument;
  FakeComm* const child =
      color < 0 ? nullptr : add_comm(0, 1, parent->device, is_blocking);
  *out = child;
  std::uint64_t ticket = 0;
  {
    const std::scoped_lock lock(parent->mutex);
    ticket = parent->tickets++;
    parent->state = CommState::kBusy;
  }
  return run_for(*parent, [parent, child, color, key, ticket] {
    run_in_turn(*parent, ticket, [&] { split(*parent, child, color, key); });
    if (child != nullptr) set_state(*child, CommState::kReady);
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Injected injected = injected_error("ncclCommGetAsyncError");
  if (injected) return injected.code;
  if (!is_comm(comm, "ncclCommGetAsyncError")) return kNcclInvalidArgument;
  bool is_busy = false;
  {
    const std::scoped_lock lock(comm->mutex);
    is_busy = comm->state == CommState::kBusy;
  }
  if (!is_busy) look_for_lost_peers(*comm);
  const std::scoped_lock lock(comm->mutex);
  *error = comm->error;
  if (*error == kNcclSuccess && is_busy) *error = kNcclInProgress;
  return kNcclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Injected injected = injected_error("ncclCommFinalize");
  if (injected) return injected.code;
  const ncclResult_t ready = check_ready(comm, "ncclCommFinalize");
  if (ready != kNcclSuccess) return ready;
  const InCall in_call(comm, "ncclCommFinalize");
  set_state(*comm, CommState::kBusy);
  const auto finish = [comm] {
    wait_until_idle(*comm);
    set_state(*comm, CommState::kFinalized);
  };
  if (!comm->is_blocking) {
    start_apart(finish).detach();
    return kNcclInProgress;
  }
  finish();
  return kNcclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const char* const function = "ncclCommDestroy";
  const Injected injected = injected_error(function);
  if (injected) return injected.code;
  if (!is_comm(comm, function)) return kNcclInvalidArgument;
  const InCall in_call(comm, function);
  bool is_done = false;
  {
    const std::scoped_lock lock(comm->mutex);
    is_done = comm->served == comm->tickets && comm->state != CommState::kBusy;
  }
  if (!is_done && !comm->is_blocking) {
    violation(function,
              "the communicator still has work: call ncclCommFinalize, and "
              "wait for its end");
    return kNcclInvalidUsage;
  }
  if (!wait_until_idle(*comm)) {
    violation(function, "the communicator has failed: call ncclCommAbort");
    return kNcclInvalidUsage;
  }
  stop_one_sided(*comm, true);
  say_goodbye(*comm);
  set_state(*comm, CommState::kDestroyed);
  return kNcclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Injected injected = injected_error("ncclCommAbort");
  if (injected) return injected.code;
  if (!is_comm(comm, "ncclCommAbort")) return kNcclInvalidArgument;
  bool is_finalized = false;
  {
    std::unique_lock lock(comm->mutex);
    is_finalized = comm->state == CommState::kFinalized;
    comm->aborted = true;
    comm->state = CommState::kAborted;
    comm->changed.notify_all();
    // As NCCL waits for the thread of a group that is in progress.
    comm->changed.wait(lock, [comm] { return comm->late_launches == 0; });
  }
  stop_one_sided(*comm, is_finalized);
  if (is_finalized) say_goodbye(*comm);
  // A running operation ends soon, and lets go of the sockets then.
  const std::scoped_lock lock(comm->peers_mutex);
  for (Peer& peer : comm->peers) peer.fd.reset();
  return kNcclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  const ncclResult_t ready = check_ready(comm, "ncclCommCount");
  if (ready == kNcclSuccess) *count = comm->size;
  return ready;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  const ncclResult_t ready = check_ready(comm, "ncclCommUserRank");
  if (ready == kNcclSuccess) *rank = comm->rank;
  return ready;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  const ncclResult_t ready = check_ready(comm, "ncclCommCuDevice");
  if (ready == kNcclSuccess) *device = comm->device;
  return ready;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case kNcclSuccess:
      return "no error";
    case kNcclUnhandledCuda:
      return "unhandled cuda error";
    case kNcclSystem:
      return "unhandled system error";
    case kNcclInternal:
      return "internal error";
    case kNcclInvalidArgument:
      return "invalid argument";
    case kNcclInvalidUsage:
      return "invalid usage";
    case kNcclRemote:
      return "remote process exited or there was a network error";
    case kNcclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  if (comm == nullptr || !is_comm(comm, "ncclGetLastError")) return "";
  const std::scoped_lock lock(comm->mutex);
  text = comm->error_text;
  return text.c_str();
}

}  // extern "C"
