#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/cuda_driver.h"
#include "device/nccl_library.h"

namespace bluecomm::device {

// A message to or from another rank.
struct NcclMessage {
  int peer = 0;
  DeviceAddress address = 0;
  std::size_t nbytes = 0;
};

// A reduction to one rank.
struct NcclReduction {
  int root = 0;
  DeviceAddress from = 0;
  DeviceAddress to = 0;  // used by the root only
  std::size_t count = 0;
};

// One operation of NCCL: its memory on the device, and what NCCL does with it.
struct NcclWork {
  enum class Function : std::uint8_t {
    kAllReduce,
    kBroadcast,
    kAllGather,
    kReduceScatter,
    kReduce,    // all reductions at once
    kExchange,  // all messages at once
  };

  Function function = Function::kAllReduce;
  DeviceAddress from = 0;
  DeviceAddress to = 0;
  std::size_t count = 0;  // elements: of the input, kReduceScatter: of the output
  int type = 0;           // NCCL's value
  int reduction = 0;      // NCCL's value
  int root = 0;           // kBroadcast
  std::vector<NcclReduction> reductions;  // kReduce
  std::vector<NcclMessage> sends;         // kExchange, as the next one
  std::vector<NcclMessage> receives;
  // kExchange: whether the members compare the bytes of each message, because the
  // fingerprint of the operation does not tell that they are equal.
  bool compares_sizes = false;
};

// Returns the function's name, such as "NCCL_ALLREDUCE".
const char* function_name(const NcclWork& work);
// Returns the bytes of the elements and messages that this rank counts in the work.
std::size_t nbytes_of(const NcclWork& work);

// Ranks that call NCCL together. They have the same id, which is never used again.
struct NcclGroup {
  std::uint64_t id = 0;
  int rank = 0;            // of this process in the group
  std::vector<int> ranks;  // of the members in the world

  int size() const { return static_cast<int>(ranks.size()); }
  int first() const { return ranks.front(); }
};

// Returns work of the group `from` for the group `to`, whose members are a part of
// it: without messages to and from other ranks, and without reductions to them. If the
// root of a broadcast is not a member of `to`, member 0 becomes the root.
NcclWork renumber(const NcclWork& work, const NcclGroup& from, const NcclGroup& to);

// A communicator of NCCL that does not block: after each call that starts something,
// poll is_settled() before the next one. The context of its device is current in each
// call. Used by one thread at a time.
class NcclComm {
 public:
  // Begins to connect the ranks, which pass the same id. Throws NcclError.
  NcclComm(std::shared_ptr<const NcclLibrary> library, const NcclId& id, int rank,
           int size);
  // Aborts, unless abort() has been called.
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // Returns whether what was started is no longer in progress. Throws NcclError once
  // the communicator has failed, perhaps because of another rank.
  bool is_settled();
  // Adds an operation to `stream`. Its work is there once the communicator has settled.
  // Throws NcclError.
  void start(const NcclWork& work, CudaStream stream);
  // Begins to register memory of all ranks, which call it together, as a window. The
  // memory is that of ncclMemAlloc. `window`, which must stay where it is, is set once
  // the communicator has settled; it is null if the ranks cannot put into each other's
  // memory. Throws NcclError.
  void register_window(DeviceAddress memory, std::size_t nbytes,
                       NcclWindowHandle& window);
  // Ends the use of a window by this rank, into which nobody puts any more. Throws
  // NcclError.
  void deregister_window(NcclWindowHandle window);
  // Adds a put to `stream`: `from`, which lies in a window of this rank, is written to
  // the target's part of `window`, and a signal is raised there after it. The end of
  // the call on the stream says that `from` may be used again, and nothing about the
  // target. Throws NcclError.
  void put(DeviceAddress from, std::size_t nbytes, int peer, NcclWindowHandle window,
           std::size_t offset, CudaStream stream);
  // Makes `stream` wait for the next `count` signals of a rank. Later work of the
  // stream then sees the values that the rank has put before these signals. Throws
  // NcclError.
  void await_signals(int peer, int count, CudaStream stream);
  // Begins to end the communicator in order: finalize(), is_settled(), abort().
  void finalize();
  // Ends all operations, also those that the device is running, and frees the
  // communicator. Unlike ncclCommDestroy, which may wait for the ranks of this machine
  // to call it, too, it waits for no other rank.
  void abort() noexcept;

 private:
  void reduce(const NcclWork& work, CudaStream stream);
  void exchange(const NcclWork& work, CudaStream stream);

  const std::shared_ptr<const NcclLibrary> library_;
  NcclHandle comm_ = nullptr;
};

}  // namespace bluecomm::device
