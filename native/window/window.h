#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/mutex.h"
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

// One rank's part of a window: a mailbox for each in-neighbor, and this rank's own
// value, which out-neighbors may read.
//
// Threads: the program calls update(), publish(), put_directly(), get_directly() and
// the functions for p on any thread. The leader of the engine calls the others, under
// the progress lock. None of them waits for another rank.
class Window {
 public:
  using Memory = std::shared_ptr<std::span<std::byte>>;
  using Weights = std::vector<std::pair<int, double>>;

  // `value` is the initial value of this rank's tensor. `allocate` returns memory
  // aligned to 64 bytes.
  Window(WindowConfig config, std::span<const std::byte> value,
         const std::function<Memory(std::size_t)>& allocate);

  const WindowConfig& config() const { return config_; }

  // Sets `result`, which may be `own`, to self_weight * own + the weighted sum of the
  // values that in-neighbors have left, added in ascending order of rank. `resets` sets
  // those values to zero. `with_p` applies all this to p, too. `keeps` makes the result
  // this rank's own value, which neighbors see.
  struct Update {
    double self_weight = 1.0;
    Weights weights;
    bool resets = false;
    bool with_p = false;
    bool keeps = true;
  };
  void update(std::span<std::byte> result, std::span<const std::byte> own,
              const Update& update) NO_THREAD_SAFETY_ANALYSIS;  // locks several edges

  // Makes `own` the value that out-neighbors read.
  void publish(std::span<const std::byte> own);

  double p();
  void scale_p(double factor);
  std::map<int, std::uint64_t> versions();

  // Put into, and get from, memory that the neighbor shares. Return false if it shares
  // none. A get replaces the value that the neighbor has left here.
  struct DirectPut {
    std::span<const std::byte> x;
    double weight = 1.0;
    bool accumulates = false;
    Mailbox::Meta meta;
  };
  bool put_directly(int out_neighbor, const DirectPut& put);
  bool get_directly(int in_neighbor, double weight, bool with_p);

  // --- For the leader of the engine ---

  // Attach memory shared by a neighbor. Ignore memory of the wrong size and memory of
  // other ranks.
  void attach_mailbox(int out_neighbor, SharedBytes shared);
  void attach_value(int in_neighbor, SharedBytes shared, std::size_t reader,
                    std::size_t readers);
  // Detach the memory shared by one rank, or by all, so that puts and gets use
  // messages.
  void detach(int rank);
  void detach_all();
  std::span<const std::byte> mailbox_memory(int in_neighbor) const {
    return *in_edges_.at(in_neighbor)->memory;
  }
  std::span<const std::byte> published_memory() const { return *published_memory_; }

  bool has_in_neighbor(int rank) const { return in_edges_.contains(rank); }
  // Returns the writer for values of an in-neighbor that arrive as messages.
  MailboxWriter& writer_for(int in_neighbor);
  // Replaces the value that an in-neighbor has left; see MailboxReader::replace().
  void replace(int in_neighbor, std::vector<std::byte>& bytes, Mailbox::Meta meta);
  PublishedValue& published() { return published_; }
  // Returns the number of an out-neighbor as a reader of published(), or nothing.
  std::optional<std::size_t> reader_number(int rank) const;

  MutexQueue mutex_queue;  // for this rank's mutex

 private:
  struct InEdge {
    InEdge(Memory memory, Mailbox mailbox,
           std::shared_ptr<const std::vector<std::byte>> initial);

    Memory memory;
    MailboxWriter writer;
    Mutex mutex;
    MailboxReader reader GUARDED_BY(mutex);
    // The neighbor's own value, if it shares it, and this rank's number as its reader.
    SharedBytes shared GUARDED_BY(mutex);
    std::optional<PublishedValue> value GUARDED_BY(mutex);
    std::size_t number GUARDED_BY(mutex) = 0;
    std::vector<std::byte> spare GUARDED_BY(mutex);  // reused by get_directly()
  };

  struct OutEdge {
    Mutex mutex;
    // The mailbox in the neighbor's memory, if it shares it.
    SharedBytes shared GUARDED_BY(mutex);
    std::optional<MailboxWriter> writer GUARDED_BY(mutex);
  };

  InEdge& in_edge(int rank) { return *in_edges_.at(rank); }
  Memory allocate_published(const std::function<Memory(std::size_t)>& allocate) const;

  const WindowConfig config_;
  std::map<int, std::unique_ptr<InEdge>> in_edges_;
  std::map<int, std::unique_ptr<OutEdge>> out_edges_;
  Mutex own_mutex_;  // also guards the writing side of published_
  double p_ GUARDED_BY(own_mutex_) = 1.0;
  Memory published_memory_;
  PublishedValue published_;
};

}  // namespace bluecomm
