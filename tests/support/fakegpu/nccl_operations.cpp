// The functions of the fake's libnccl.so.2 that ranks call together, and their checks.
#include <utility>

#include "comm_checks.h"
#include "group.h"
#include "nccl_abi.h"
#include "operation.h"
#include "reduce.h"
#include "report.h"
#include "world.h"

namespace fakegpu {
namespace {

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

}  // namespace

ncclResult_t add_checked(Operation operation, const char* function) {
  const ncclResult_t wrong = check(operation, function);
  return wrong == kNcclSuccess ? add_operation(std::move(operation))
                               : fail_group(wrong);
}

}  // namespace fakegpu

using namespace fakegpu;  // NOLINT: this file is the library's surface

extern "C" {

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count,
                           ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm,
                           CUstream stream) {
  return add_checked(call(Operation::kAllReduce, send, receive, count, type, reduction,
                          0, comm, stream),
                     "ncclAllReduce");
}

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count,
                        ncclDataType_t type, ncclRedOp_t reduction, int root,
                        ncclComm_t comm, CUstream stream) {
  // Only the root's is written.
  if (is_comm(comm, "ncclReduce") && comm->rank != root) receive = nullptr;
  return add_checked(call(Operation::kReduce, send, receive, count, type, reduction,
                          root, comm, stream),
                     "ncclReduce");
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           CUstream stream) {
  // Only the root's is read.
  if (is_comm(comm, "ncclBroadcast") && comm->rank != root) send = nullptr;
  return add_checked(
      call(Operation::kBroadcast, send, receive, count, type, 0, root, comm, stream),
      "ncclBroadcast");
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count,
                           ncclDataType_t type, ncclComm_t comm, CUstream stream) {
  return add_checked(
      call(Operation::kAllGather, send, receive, count, type, 0, 0, comm, stream),
      "ncclAllGather");
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t reduction,
                               ncclComm_t comm, CUstream stream) {
  return add_checked(call(Operation::kReduceScatter, send, receive, count, type,
                          reduction, 0, comm, stream),
                     "ncclReduceScatter");
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, CUstream stream) {
  return add_checked(
      call(Operation::kPointToPoint, send, nullptr, count, type, 0, peer, comm, stream),
      "ncclSend");
}

ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, CUstream stream) {
  return add_checked(call(Operation::kPointToPoint, nullptr, receive, count, type, 0,
                          peer, comm, stream),
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

}  // extern "C"
