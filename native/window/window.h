#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "window/mailbox.h"
#include "window/mutex_queue.h"
#include "window/published_value.h"

namespace bluecomm {

struct WindowConfig {
  std::uint64_t id = 0;  // the same on all ranks; different for different windows
  std::string name;
  int rank = 0;
  DType dtype = DType::kFloat32;
  std::size_t nbytes = 0;
  std::vector<int> in_neighbors;   // ascending
  std::vector<int> out_neighbors;  // ascending
  bool zero_init = false;
};

// One rank's part of a window: a mailbox for each in-neighbor, and the own value that
// out-neighbors may read.
//
// Threads: update(), publish() and the p are for the program's threads, which they keep
// apart by themselves; the rest of what in-neighbors leave is brought by whoever drives
// the engine. None of them waits for another rank.
class Window {
 public:
  using Memory = std::shared_ptr<std::span<std::byte>>;
  using Weights = std::vector<std::pair<int, double>>;

  // `value` is what the own tensor holds; `allocate` gives memory aligned to 64 bytes.
  Window(WindowConfig config, std::span<const std::byte> value,
         const std::function<Memory(std::size_t)>& allocate);

  const WindowConfig& config() const { return config_; }

  // result = self_weight * own + the sum of the weighted values that in-neighbors have
  // left, in ascending order of rank. `result` may be `own`. The same for p if
  // `with_p`. `keeps` says that result takes the place of the own value.
  struct Update {
    double self_weight = 1.0;
    Weights weights;
    bool resets = false;
    bool with_p = false;
    bool keeps = true;
  };
  void update(std::span<std::byte> result, std::span<const std::byte> own,
              const Update& update);

  // Shows the own value to the out-neighbors.
  void publish(std::span<const std::byte> own);

  double p();
  void scale_p(double factor);
  std::map<int, std::uint64_t> versions();

  // --- For whoever drives the engine ---

  bool has_in_neighbor(int rank) const { return in_edges_.contains(rank); }
  // Where the values of an in-neighbor go that come as messages.
  MailboxWriter& writer_for(int in_neighbor);
  // A copy of an in-neighbor's own value takes the place of what it has left.
  void replace(int in_neighbor, std::vector<std::byte> bytes, Mailbox::Meta meta);
  PublishedValue& published() { return published_; }
  // The out-neighbor's number as a reader of published(); nothing for another rank.
  std::optional<std::size_t> reader_number(int rank) const;

  MutexQueue mutex_queue;  // of this rank's mutex; under the progress lock

 private:
  struct InEdge {
    InEdge(Memory memory, Mailbox mailbox,
           std::shared_ptr<const std::vector<std::byte>> initial);

    Memory memory;
    MailboxWriter writer;
    std::mutex mutex;  // over `reader`
    MailboxReader reader;
  };

  InEdge& in_edge(int rank) { return *in_edges_.at(rank); }
  Memory allocate_published(const std::function<Memory(std::size_t)>& allocate) const;

  const WindowConfig config_;
  std::map<int, std::unique_ptr<InEdge>> in_edges_;
  std::mutex own_mutex_;  // over p_, and the writing side of published_
  double p_ = 1.0;
  Memory published_memory_;
  PublishedValue published_;
};

}  // namespace bluecomm
