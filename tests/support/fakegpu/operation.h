// Operations of a communicator: what a call asks for, and how a group of them is put on
// a stream.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm.h"
#include "cuda_abi.h"

namespace fakegpu {

struct Operation {
  enum Kind : std::uint32_t {
    kPointToPoint = 0,
    kAllReduce = 1,
    kReduce = 2,
    kBroadcast = 3,
    kAllGather = 4,
    kReduceScatter = 5,
    kSplit = 6,
    kRegister = 7,
    kPut = 8,  // `root` is the target
    kWaitSignal = 9,
  };

  Kind kind = kPointToPoint;
  std::string function;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;
  const void* send = nullptr;  // null: nothing to send
  void* receive = nullptr;     // null: nothing to receive
  std::size_t count = 0;
  ncclDataType_t type = 0;
  ncclRedOp_t reduction = 0;
  std::optional<double> scale;         // of a reduction made by PreMulSum
  int root = 0;                        // or the peer
  std::uint64_t number = 0;            // among the communicator's collectives
  const FakeWindow* window = nullptr;  // of a put; null: only a signal
  std::uint64_t offset = 0;            // in the target's part of the window
  // The ranks whose signals a wait expects, and how many of each since the beginning.
  std::vector<std::pair<int, std::uint64_t>> waits;
  // Injected: waits until the abort, or fails with this code.
  bool hangs = false;
  ncclResult_t fails = 0;
};

// Adds an operation to the group of this thread, if it is right.
ncclResult_t add_checked(Operation operation, const char* function);

// Returns an error, after a violation, if the operation's memory does not hold what it
// reads and writes, or belongs to another device. Needs the world's mutex.
ncclResult_t check_memory(const FakeComm& comm, const Operation& operation);

// Puts the operations of one communicator on their stream, as one kernel. Returns an
// error if their memory is not valid.
ncclResult_t launch(FakeComm& comm, std::vector<Operation> operations);

// Runs `body` when it is the ticket's turn. A failed communicator lets nothing pass
// until it is aborted, as a kernel that spins for ever.
template <typename Body>
void run_in_turn(FakeComm& comm, std::uint64_t ticket, Body&& body) {
  std::unique_lock lock(comm.mutex);
  comm.changed.wait(lock, [&] { return comm.served == ticket || comm.aborted; });
  if (!comm.aborted && comm.error == kNcclSuccess) {
    lock.unlock();
    body();
    lock.lock();
  }
  comm.changed.wait(lock, [&] { return comm.error == kNcclSuccess || comm.aborted; });
  ++comm.served;
  comm.changed.notify_all();
}

}  // namespace fakegpu
