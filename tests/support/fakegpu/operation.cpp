// Runs NCCL's operations as tasks of the fake's streams. Each collective is the
// plainest that is right: all ranks exchange what they have, and each reduces in order
// of rank.
#include "operation.h"

#include <cstring>
#include <memory>
#include <mutex>

#include "one_sided.h"
#include "reduce.h"
#include "report.h"
#include "world.h"

namespace fakegpu {
namespace {

class Runner {
 public:
  Runner(FakeComm& comm, const Operation& operation)
      : comm_(comm),
        operation_(operation),
        send_(alias(operation.send)),
        receive_(alias(operation.receive)),
        ranks_(static_cast<std::size_t>(comm.size)),
        bytes_(operation.count * size_of(operation.type)) {}

  bool run() {
    switch (operation_.kind) {
      case Operation::kAllReduce:
        return reduce_parts(0, true);
      case Operation::kReduce:
        return reduce_parts(0, comm_.rank == operation_.root);
      case Operation::kReduceScatter:
        return reduce_parts(bytes_, true);
      case Operation::kBroadcast:
        return broadcast();
      case Operation::kAllGather:
        return all_gather();
      case Operation::kPut:
        return send_put(comm_, operation_, send_);
      case Operation::kWaitSignal:
        return true;  // launch() has waited
      default:
        return false;
    }
  }

  // Adds the message of a send or receive.
  void add_to(std::vector<Message>& messages) const {
    const bool is_send = operation_.send != nullptr;
    messages.push_back(
        {operation_.root, is_send, is_send ? send_ : receive_, bytes_, key()});
  }

 private:
  static std::byte* alias(const void* address) {
    return world().memory.alias(reinterpret_cast<std::uintptr_t>(address));
  }

  MessageKey key() const {
    return {operation_.kind,
            operation_.type,
            reduction_in_key(),
            operation_.kind == Operation::kPointToPoint ? 0 : operation_.root,
            operation_.count,
            operation_.number};
  }

  // Reductions made by PreMulSum have numbers of their own on each rank.
  ncclRedOp_t reduction_in_key() const {
    return operation_.reduction > kAvg ? kAvg + 1 : operation_.reduction;
  }

  // Sends the part of each rank to it, `stride` bytes apart, or the same to all. A rank
  // that `takes` a result reduces what it received.
  bool reduce_parts(std::size_t stride, bool takes) {
    std::vector<Message> messages;
    std::vector<std::vector<std::byte>> received(ranks_);
    std::vector<const std::byte*> inputs(ranks_);
    for (std::size_t i = 0; i < ranks_; ++i) {
      const int peer = static_cast<int>(i);
      std::byte* const part = send_ + i * stride;
      inputs[i] = part;
      if (peer == comm_.rank) continue;
      if (operation_.kind != Operation::kReduce || peer == operation_.root) {
        messages.push_back({peer, true, part, bytes_, key()});
      }
      if (takes) {
        received[i].resize(bytes_);
        inputs[i] = received[i].data();
        messages.push_back({peer, false, received[i].data(), bytes_, key()});
      }
    }
    if (!exchange_messages(comm_, messages)) return false;
    if (takes) {
      reduce(operation_.type, operation_.reduction, operation_.scale, inputs,
             operation_.count, receive_);
    }
    return true;
  }

  bool broadcast() {
    std::vector<Message> messages;
    if (comm_.rank != operation_.root) {
      messages.push_back({operation_.root, false, receive_, bytes_, key()});
    } else {
      for (int peer = 0; peer < comm_.size; ++peer) {
        if (peer != comm_.rank) messages.push_back({peer, true, send_, bytes_, key()});
      }
      std::memmove(receive_, send_, bytes_);
    }
    return exchange_messages(comm_, messages);
  }

  bool all_gather() {
    std::vector<Message> messages;
    for (int peer = 0; peer < comm_.size; ++peer) {
      if (peer == comm_.rank) continue;
      std::byte* const part = receive_ + static_cast<std::size_t>(peer) * bytes_;
      messages.push_back({peer, true, send_, bytes_, key()});
      messages.push_back({peer, false, part, bytes_, key()});
    }
    std::memmove(receive_ + static_cast<std::size_t>(comm_.rank) * bytes_, send_,
                 bytes_);
    return exchange_messages(comm_, messages);
  }

  FakeComm& comm_;
  const Operation& operation_;
  std::byte* send_;
  std::byte* receive_;
  std::size_t ranks_;
  std::size_t bytes_;
};

// Collectives in their order, then all sends and receives at once.
bool run_all(FakeComm& comm, const std::vector<Operation>& operations) {
  std::vector<Message> messages;
  for (const Operation& operation : operations) {
    if (operation.hangs) {
      std::unique_lock lock(comm.mutex);
      comm.changed.wait(lock, [&] { return comm.aborted.load(); });
      return false;
    }
    if (operation.fails != 0) {
      set_error(comm, operation.fails, "injected into " + operation.function);
      return false;
    }
    Runner runner(comm, operation);
    if (operation.kind == Operation::kPointToPoint) {
      runner.add_to(messages);
    } else if (!runner.run()) {
      return false;
    }
  }
  return messages.empty() || exchange_messages(comm, messages);
}

void add_ranges(const FakeComm& comm, const Operation& operation,
                std::vector<Range>& ranges) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  const std::size_t all = bytes * static_cast<std::size_t>(comm.size);
  const bool gathers = operation.kind == Operation::kAllGather;
  const bool scatters = operation.kind == Operation::kReduceScatter;
  if (operation.send != nullptr) {
    ranges.push_back({reinterpret_cast<std::uintptr_t>(operation.send),
                      scatters ? all : bytes, false});
  }
  if (operation.receive != nullptr) {
    ranges.push_back({reinterpret_cast<std::uintptr_t>(operation.receive),
                      gathers ? all : bytes, true});
  }
}

}  // namespace

ncclResult_t check_memory(const FakeComm& comm, const Operation& operation) {
  std::vector<Range> ranges;
  add_ranges(comm, operation, ranges);
  for (const Range& range : ranges) {
    if (!world().memory.check(range, operation.function)) return kNcclInvalidArgument;
    const Allocation* const found = world().memory.find(range.begin);
    if (found == nullptr || !found->is_device || found->device == comm.device) continue;
    violation(operation.function, "memory of device " + std::to_string(found->device) +
                                      ", but the communicator is of device " +
                                      std::to_string(comm.device));
    return kNcclInvalidArgument;
  }
  return kNcclSuccess;
}

ncclResult_t launch(FakeComm& comm, std::vector<Operation> operations) {
  std::vector<Range> ranges;
  for (const Operation& operation : operations) add_ranges(comm, operation, ranges);
  const std::string label = operations.front().function;
  // A stream waits for signals before it is given more, since only then it is known
  // what they follow.
  Clock seen;
  for (const Operation& operation : operations) {
    if (operation.kind != Operation::kWaitSignal) continue;
    if (!await_signals(comm, operation)) break;
    seen.join(clock_of_signals(comm, operation));
  }
  CUstream const stream = operations.front().stream;
  // Tickets and tasks have one order, since both are given under the world's mutex.
  const std::scoped_lock lock(world().mutex);
  std::uint64_t ticket = 0;
  {
    const std::scoped_lock inner(comm.mutex);
    ticket = comm.tickets;
  }
  stream->clock.join(seen);
  auto shared = std::make_shared<std::vector<Operation>>(std::move(operations));
  Task task{label,
            [&comm, ticket, shared] {
              run_in_turn(comm, ticket, [&] { run_all(comm, *shared); });
            },
            nullptr};
  if (!submit(stream, std::move(task), ranges)) return kNcclInvalidArgument;
  const std::scoped_lock inner(comm.mutex);
  ++comm.tickets;
  return kNcclSuccess;
}

}  // namespace fakegpu
