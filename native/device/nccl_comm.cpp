#include "device/nccl_comm.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace bluecomm::device {
namespace {

// Constants of NCCL's interface.
constexpr unsigned kConfigMagic = 0xcafebeef;
constexpr unsigned kConfigVersion = 21400;
constexpr int kNcclUInt8 = 1;
constexpr int kWindowIsSymmetric = 1;

// Returns the number in `to` of a member of `from`.
std::optional<int> find_member(int member, const NcclGroup& from, const NcclGroup& to) {
  const int rank = from.ranks.at(static_cast<std::size_t>(member));
  const auto found = std::ranges::find(to.ranks, rank);
  if (found == to.ranks.end()) return std::nullopt;
  return static_cast<int>(found - to.ranks.begin());
}

}  // namespace

const char* function_name(const NcclWork& work) {
  switch (work.function) {
    case NcclWork::Function::kAllReduce:
      return "NCCL_ALLREDUCE";
    case NcclWork::Function::kBroadcast:
      return "NCCL_BROADCAST";
    case NcclWork::Function::kAllGather:
      return "NCCL_ALLGATHER";
    case NcclWork::Function::kReduceScatter:
      return "NCCL_REDUCESCATTER";
    case NcclWork::Function::kReduce:
      return "NCCL_REDUCE";
    case NcclWork::Function::kExchange:
      break;
  }
  return "NCCL_SEND_RECV";
}

std::size_t nbytes_of(const NcclWork& work) {
  // Of NCCL's types, from ncclInt8 to ncclFloat8e5m2.
  constexpr std::array<std::size_t, 12> kSizes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  std::size_t count = work.count;
  for (const NcclReduction& one : work.reductions) count += one.count;
  std::size_t nbytes = count * kSizes.at(static_cast<std::size_t>(work.type));
  for (const NcclMessage& one : work.sends) nbytes += one.nbytes;
  return nbytes;
}

NcclWork renumber(const NcclWork& work, const NcclGroup& from, const NcclGroup& to) {
  NcclWork result = work;
  result.root = find_member(work.root, from, to).value_or(0);
  for (std::vector<NcclMessage>* const messages : {&result.sends, &result.receives}) {
    std::erase_if(*messages, [&](NcclMessage& one) {
      const std::optional<int> member = find_member(one.peer, from, to);
      if (member) one.peer = *member;
      return !member;
    });
  }
  std::erase_if(result.reductions, [&](NcclReduction& one) {
    const std::optional<int> member = find_member(one.root, from, to);
    if (member) one.root = *member;
    return !member;
  });
  return result;
}

NcclComm::NcclComm(std::shared_ptr<const NcclLibrary> library, const NcclId& id,
                   int rank, int size)
    : library_(std::move(library)) {
  NcclConfig config{sizeof(NcclConfig), kConfigMagic, kConfigVersion, 0};
  const int result = library_->call().init_rank(&comm_, size, id, rank, &config);
  try {
    library_->check(result, "ncclCommInitRankConfig", comm_);
  } catch (const NcclError&) {
    abort();
    throw;
  }
}

NcclComm::~NcclComm() { abort(); }

bool NcclComm::is_settled() {
  int state = kNcclSuccess;
  library_->check(library_->call().get_async_error(comm_, &state),
                  "ncclCommGetAsyncError", comm_);
  library_->check(state, "NCCL's communicator", comm_);
  return state == kNcclSuccess;
}

void NcclComm::start(const NcclWork& work, CudaStream stream) {
  const NcclFunctions& nccl = library_->call();
  const auto* const from = reinterpret_cast<const void*>(work.from);
  auto* const to = reinterpret_cast<void*>(work.to);
  switch (work.function) {
    case NcclWork::Function::kAllReduce:
      library_->check(nccl.all_reduce(from, to, work.count, work.type, work.reduction,
                                      comm_, stream),
                      "ncclAllReduce", comm_);
      return;
    case NcclWork::Function::kBroadcast:
      library_->check(
          nccl.broadcast(from, to, work.count, work.type, work.root, comm_, stream),
          "ncclBroadcast", comm_);
      return;
    case NcclWork::Function::kAllGather:
      library_->check(nccl.all_gather(from, to, work.count, work.type, comm_, stream),
                      "ncclAllGather", comm_);
      return;
    case NcclWork::Function::kReduceScatter:
      library_->check(nccl.reduce_scatter(from, to, work.count, work.type,
                                          work.reduction, comm_, stream),
                      "ncclReduceScatter", comm_);
      return;
    case NcclWork::Function::kReduce:
      reduce(work, stream);
      return;
    case NcclWork::Function::kExchange:
      exchange(work, stream);
      return;
  }
}

// Starts all reductions in one group, so that they run at once.
void NcclComm::reduce(const NcclWork& work, CudaStream stream) {
  const NcclFunctions& nccl = library_->call();
  library_->check(nccl.group_start(), "ncclGroupStart", comm_);
  int reduced = kNcclSuccess;
  for (const NcclReduction& one : work.reductions) {
    if (reduced != kNcclSuccess) break;
    reduced = nccl.reduce(reinterpret_cast<const void*>(one.from),
                          reinterpret_cast<void*>(one.to), one.count, work.type,
                          work.reduction, one.root, comm_, stream);
  }
  const int ended = nccl.group_end();  // also after a failure
  library_->check(reduced, "ncclReduce", comm_);
  library_->check(ended, "ncclGroupEnd", comm_);
}

// Starts all messages in one group, because sends and receives outside of a group wait
// for each other.
void NcclComm::exchange(const NcclWork& work, CudaStream stream) {
  const NcclFunctions& nccl = library_->call();
  library_->check(nccl.group_start(), "ncclGroupStart", comm_);
  int sent = kNcclSuccess;
  for (const NcclMessage& one : work.sends) {
    if (sent != kNcclSuccess) break;
    sent = nccl.send(reinterpret_cast<const void*>(one.address), one.nbytes, kNcclUInt8,
                     one.peer, comm_, stream);
  }
  int received = kNcclSuccess;
  for (const NcclMessage& one : work.receives) {
    if (received != kNcclSuccess) break;
    received = nccl.receive(reinterpret_cast<void*>(one.address), one.nbytes,
                            kNcclUInt8, one.peer, comm_, stream);
  }
  const int ended = nccl.group_end();  // also after a failure
  library_->check(sent, "ncclSend", comm_);
  library_->check(received, "ncclRecv", comm_);
  library_->check(ended, "ncclGroupEnd", comm_);
}

void NcclComm::register_window(DeviceAddress memory, std::size_t nbytes,
                               NcclWindowHandle& window) {
  library_->check(
      library_->puts().register_window(comm_, reinterpret_cast<void*>(memory), nbytes,
                                       &window, kWindowIsSymmetric),
      "ncclCommWindowRegister", comm_);
}

void NcclComm::deregister_window(NcclWindowHandle window) {
  library_->check(library_->puts().deregister_window(comm_, window),
                  "ncclCommWindowDeregister", comm_);
}

void NcclComm::put(DeviceAddress from, std::size_t nbytes, int peer,
                   NcclWindowHandle window, std::size_t offset, CudaStream stream) {
  library_->check(library_->puts().put_signal(reinterpret_cast<const void*>(from),
                                              nbytes, kNcclUInt8, peer, window, offset,
                                              0, 0, 0, comm_, stream),
                  "ncclPutSignal", comm_);
}

void NcclComm::await_signals(int peer, int count, CudaStream stream) {
  NcclSignals signals{count, peer, 0, 0};
  library_->check(library_->puts().wait_signal(1, &signals, comm_, stream),
                  "ncclWaitSignal", comm_);
}

void NcclComm::finalize() {
  library_->check(library_->call().finalize(comm_), "ncclCommFinalize", comm_);
}

void NcclComm::abort() noexcept {
  if (const NcclHandle comm = std::exchange(comm_, nullptr)) {
    library_->call().abort(comm);
  }
}

}  // namespace bluecomm::device
