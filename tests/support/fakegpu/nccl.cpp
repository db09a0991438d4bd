// The fake's libnccl.so.2: checks of arguments, communicators, and their life.
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "comm.h"
#include "group.h"
#include "mesh.h"
#include "nccl_abi.h"
#include "operation.h"
#include "reduce.h"
#include "report.h"
#include "world.h"

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

// Checks that a communicator takes operations.
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

// Notices two threads in one communicator.
class InCall {
 public:
  InCall(ncclComm_t comm, const char* function) : comm_(comm) {
    is_alone_ = !comm_->in_call.exchange(true);
    if (!is_alone_) violation(function, "another thread is using the communicator");
  }
  ~InCall() {
    if (is_alone_) comm_->in_call = false;
  }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  ncclComm_t comm_;
  bool is_alone_;
};

template <typename Body>
void run_apart(Body&& body) {
  sigset_t signals;
  sigset_t before;
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, &before);
  std::thread(std::forward<Body>(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void set_state(FakeComm& comm, CommState state) {
  const std::scoped_lock lock(comm.mutex);
  if (comm.state != CommState::kAborted) comm.state = state;
  comm.changed.notify_all();
}

// Runs `body` and then makes the communicator ready: at once if it is blocking, else
// on a thread. Returns what the call returns.
template <typename Body>
ncclResult_t run_for(FakeComm& comm, Body body) {
  const auto run = [&comm, body = std::move(body)]() mutable {
    body();
    set_state(comm, CommState::kReady);
  };
  if (!comm.is_blocking) {
    run_apart(std::move(run));
    return kNcclInProgress;
  }
  auto mutable_run = std::move(run);
  mutable_run();
  const std::scoped_lock lock(comm.mutex);
  return comm.error;
}

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

// Checks what all operations have in common.
ncclResult_t check(Operation& operation, const char* function) {
  const Injected injected = injected_error(function);
  if (injected.kind == Injected::Kind::kCode) return injected.code;
  operation.hangs = injected.kind == Injected::Kind::kHang;
  operation.fails = injected.kind == Injected::Kind::kAsync ? injected.code : 0;
  operation.function = function;
  const ncclResult_t ready = check_ready(operation.comm, function);
  if (ready != kNcclSuccess) return ready;
  FakeComm& comm = *operation.comm;
  const InCall in_call(&comm, function);
  if (size_of(operation.type) == 0 || operation.root < 0 ||
      operation.root >= comm.size) {
    violation(function, "an unknown type, or no such rank");
    return kNcclInvalidArgument;
  }
  if (const auto own = comm.scales.find(operation.reduction);
      own != comm.scales.end()) {
    operation.scale = own->second;
  } else if (operation.reduction < kSum || operation.reduction > kAvg) {
    violation(function, "an unknown reduction");
    return kNcclInvalidArgument;
  }
  {
    const std::scoped_lock lock(world().mutex);
    operation.stream = find_stream(operation.stream, function);
    if (operation.stream == nullptr) return kNcclInvalidArgument;
    if (operation.stream->device != comm.device) {
      violation(function, "a stream of device " +
                              std::to_string(operation.stream->device) +
                              ", but the communicator is of device " +
                              std::to_string(comm.device));
      return kNcclInvalidUsage;
    }
    return check_memory(comm, operation);
  }
}

// Adds an operation to the group of this thread, if it is right.
ncclResult_t add(Operation operation, const char* function) {
  const ncclResult_t wrong = check(operation, function);
  return wrong == kNcclSuccess ? add_operation(std::move(operation))
                               : fail_group(wrong);
}

Operation call(Operation::Kind kind, const void* send, void* receive, std::size_t count,
               ncclDataType_t type, ncclRedOp_t reduction, int root, ncclComm_t comm,
               CUstream stream) {
  Operation made;
  made.kind = kind;
  made.send = send;
  made.receive = receive;
  made.count = count;
  made.type = type;
  made.reduction = reduction;
  made.root = root;
  made.comm = comm;
  made.stream = stream;
  return made;
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
    run_apart(finish);
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

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count,
                           ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm,
                           CUstream stream) {
  return add(call(Operation::kAllReduce, send, receive, count, type, reduction, 0, comm,
                  stream),
             "ncclAllReduce");
}

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count,
                        ncclDataType_t type, ncclRedOp_t reduction, int root,
                        ncclComm_t comm, CUstream stream) {
  // Only the root's is written.
  if (is_comm(comm, "ncclReduce") && comm->rank != root) receive = nullptr;
  return add(call(Operation::kReduce, send, receive, count, type, reduction, root, comm,
                  stream),
             "ncclReduce");
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           CUstream stream) {
  // Only the root's is read.
  if (is_comm(comm, "ncclBroadcast") && comm->rank != root) send = nullptr;
  return add(
      call(Operation::kBroadcast, send, receive, count, type, 0, root, comm, stream),
      "ncclBroadcast");
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count,
                           ncclDataType_t type, ncclComm_t comm, CUstream stream) {
  return add(
      call(Operation::kAllGather, send, receive, count, type, 0, 0, comm, stream),
      "ncclAllGather");
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t comm, CUstream stream) {
  return add(call(Operation::kReduceScatter, send, receive, count, type, reduction, 0,
                  comm, stream),
             "ncclReduceScatter");
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, CUstream stream) {
  return add(
      call(Operation::kPointToPoint, send, nullptr, count, type, 0, peer, comm, stream),
      "ncclSend");
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream) {
  return add(call(Operation::kPointToPoint, nullptr, receive, count, type, 0, peer,
                  comm, stream),
             "ncclRecv");
}

ncclResult_t ncclGroupStart() {
  const Injected injected = injected_error("ncclGroupStart");
  return injected ? injected.code : begin_group();
}

ncclResult_t ncclGroupEnd() {
  const Injected injected = injected_error("ncclGroupEnd");
  const ncclResult_t result = end_group();
  return injected ? injected.code : result;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* out, void* scalar,
                                      ncclDataType_t type, int residence,
                                      ncclComm_t comm) {
  const char* const function = "ncclRedOpCreatePreMulSum";
  const Injected injected = injected_error(function);
  if (injected) return injected.code;
  const ncclResult_t ready = check_ready(comm, function);
  if (ready != kNcclSuccess) return ready;
  if (residence != 1) {
    violation(function,
              "the fake reads scalars of the host only (ncclScalarHostImmediate)");
    return kNcclInvalidArgument;
  }
  const std::scoped_lock lock(comm->mutex);
  *out = comm->next_reduction++;
  comm->scales[*out] = item_as_double(type, scalar);
  return kNcclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t reduction, ncclComm_t comm) {
  const char* const function = "ncclRedOpDestroy";
  const Injected injected = injected_error(function);
  if (injected) return injected.code;
  if (!is_comm(comm, function)) return kNcclInvalidArgument;
  const std::scoped_lock lock(comm->mutex);
  // Operations that were issued keep their scalar.
  if (comm->scales.erase(reduction) == 1) return kNcclSuccess;
  violation(function, "an unknown reduction");
  return kNcclInvalidArgument;
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
