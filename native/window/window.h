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
#include "transport/channel.h"
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
  // left, in ascending order of rank. `result` may be `own`. `resets` leaves zeros in
  // their place. The same for p if `with_p`, else each p stays. `keeps` says that
  // result takes the place of the own value.
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

  // Does a put, or get, at once where the neighbor's memory is shared; else false. A
  // get takes the place of what the neighbor has left here.
  struct DirectPut {
    std::span<const std::byte> x;
    double weight = 1.0;
    bool accumulates = false;
    Mailbox::Meta meta;
  };
  bool put_directly(int out_neighbor, const DirectPut& put);
  bool get_directly(int in_neighbor, double weight, bool with_p);

  // --- For whoever drives the engine ---

  // What a neighbor shares. What it makes no sense to share is not taken.
  void attach_mailbox(int out_neighbor, SharedBytes shared);
  void attach_value(int in_neighbor, SharedBytes shared, std::size_t reader,
                    std::size_t readers);
  // The neighbor is gone, or (all) the window is: nothing is done directly any more.
  void detach(int rank);
  void detach_all();
  std::span<const std::byte> mailbox_memory(int in_neighbor) const {
    return *in_edges_.at(in_neighbor)->memory;
  }
  std::span<const std::byte> published_memory() const { return *published_memory_; }

  bool has_in_neighbor(int rank) const { return in_edges_.contains(rank); }
  // Where the values of an in-neighbor go that come as messages.
  MailboxWriter& writer_for(int in_neighbor);
  // A copy of an in-neighbor's own value takes the place of what it has left.
  void replace(int in_neighbor, std::vector<std::byte>& bytes, Mailbox::Meta meta);
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
    std::mutex mutex;  // over all below
    MailboxReader reader;
    SharedBytes shared;  // the neighbor's own value, if it is
    std::optional<PublishedValue> value;
    std::size_t number = 0;        // as its reader
    std::vector<std::byte> spare;  // for the next value that is read
  };

  struct OutEdge {
    std::mutex mutex;  // over all below
    SharedBytes shared;
    std::optional<MailboxWriter> writer;  // to the neighbor's mailbox
  };

  InEdge& in_edge(int rank) { return *in_edges_.at(rank); }
  Memory allocate_published(const std::function<Memory(std::size_t)>& allocate) const;

  const WindowConfig config_;
  std::map<int, std::unique_ptr<InEdge>> in_edges_;
  std::map<int, std::unique_ptr<OutEdge>> out_edges_;
  std::mutex own_mutex_;  // over p_, and the writing side of published_
  double p_ = 1.0;
  Memory published_memory_;
  PublishedValue published_;
};

}  // namespace bluecomm
