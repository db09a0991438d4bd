#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "transport/channel.h"

// Transport between ranks that live in one process: what tests of the engine and of the
// conformance suite run on. It copies, and has no link that could break by itself.

namespace bluecomm {

struct InprocOptions {
  std::size_t eager_bytes = 4096;
  // At most this much of a message becomes readable at a time, unless the receiver gave
  // memory of its own. A multiple of kChunkAlignment.
  std::size_t chunk_bytes = 256 << 10;
  // Each message is held back for a random time up to this. Messages of a channel keep
  // their order, those of different channels do not.
  std::chrono::microseconds max_delay{0};
  std::uint64_t seed = 1;
  // Receivers may write into the memory of the sender.
  bool shares_memory = false;
};

// Where the ranks of a test meet. Thread-safe; transports keep it alive.
class InprocHub {
 public:
  explicit InprocHub(int size, const InprocOptions& options = {});
  ~InprocHub();

  // The transport of `rank`, to be made once. All are made before the first is polled.
  std::unique_ptr<Transport> make_transport(int rank);

  // Breaks the link between two ranks: what was sent still arrives, then both are told.
  void cut(int rank, int other);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace bluecomm
