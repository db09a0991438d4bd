#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  // Number of ranks if the window may get more edges, as in a job that survives losses;
  // 0 if its edges stay as they are.
  int ranks = 0;
  // Bytes of a device value; `nbytes` is 0 then.
  std::size_t nbytes_on_device = 0;

  std::size_t value_nbytes() const { return nbytes + nbytes_on_device; }
};

// One rank's part of a window: a mailbox for each in-neighbor, and this rank's own
// value, which out-neighbors may read.
//
// An edge to a rank that is lost is *retired*: nothing is put, taken or read over it
// any more. docs/survival.md has the states of an edge. No edge is ever removed, so its
// memory is not used for anything else as long as the window lives.
//
// Threads: the program calls update(), publish(), put_directly(), get_directly(),
// add_in_edges() and the functions for p on any thread. The leader of the engine calls
// the others, under the progress lock. None of them waits for another rank.
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
  //
  // Over a retired edge, the last complete value counts once. From then on the own
  // value takes the weight, so that the weights still add up to the same sum; with
  // `resets` the value is zero. Integers, which cannot be weighted, keep the last
  // value. Returns how many weights the own value has taken.
  struct Update {
    double self_weight = 1.0;
    Weights weights;
    bool resets = false;
    bool with_p = false;
    bool keeps = true;
    bool takes = true;  // false if take() has been called for the edges
  };
  std::size_t update(std::span<std::byte> result, std::span<const std::byte> own,
                     const Update& update)
      NO_THREAD_SAFETY_ANALYSIS;  // locks several edges

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

  // --- Device values; see device_values.cpp ---
  //
  // The functions above then change words, p and counts alone. The caller moves each
  // value between one of these calls and one of those. One thread at a time.

  // Return the back slot, and the pending publication, of the mailbox at a neighbor;
  // nothing if it is lost, or if a publication there has failed. put_directly()
  // publishes the back slot. If the neighbor shares no memory, both come from its last
  // answer, the pending value may have been taken since, and WindowPut publishes.
  std::optional<std::uint32_t> back_slot(int out_neighbor);
  std::optional<MailboxWriter::Pending> pending(int out_neighbor);
  // Publishes the back slot as the sum of the pending value and of another one, whose p
  // is in `meta`. Returns false if the reader has taken the pending one.
  bool publish_sum(int out_neighbor, const MailboxWriter::Pending& pending,
                   Mailbox::Meta meta);
  // Returns whether put_directly() would publish at a neighbor.
  bool shares_mailbox(int out_neighbor);
  // Returns whether the last publication of a sum at a neighbor without shared memory
  // took place; not if the reader had taken the pending value.
  bool was_published(int out_neighbor);
  // Returns the slot of a neighbor's own value, which stays as it is until
  // get_directly(); nothing if it shares no memory.
  std::optional<std::uint32_t> begin_get(int in_neighbor);
  // Returns what take() would find.
  MailboxReader::Publication next(int in_neighbor);
  // Lets the next publications at a neighbor say which signal follows their values.
  void set_signal(int out_neighbor, std::uint64_t signal);
  // Returns the signal behind what take() would find, or else behind the front slot.
  std::uint64_t next_signal(int in_neighbor);
  // Returns what set_signal() has set.
  std::uint64_t signal(int out_neighbor);
  // Gives the front slot back to the neighbor. Returns the publication that has been
  // taken, and its slot, which is the front slot from now on.
  std::pair<MailboxReader::Publication, std::uint32_t> take(int in_neighbor);
  // Returns a slot that nobody reads, which the next publish() or update() makes
  // current.
  std::uint32_t reserve();

  // Makes mailboxes for ranks that have none here, in a window with config().ranks, and
  // returns these ranks. `own` is the value that they are taken to have left, unless
  // the window begins with zeros.
  std::vector<int> add_in_edges(const std::vector<int>& ranks,
                                std::span<const std::byte> own);
  // Return the ranks that have a mailbox here, and the ranks with a mailbox for this
  // one that are not lost, ascending.
  std::vector<int> sources() const;
  std::vector<int> targets() const;

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
  // Retires the edges to and from a lost rank.
  void retire(int rank);
  // Notes that a rank has made a mailbox for this one. Returns false if the window gets
  // no more edges.
  bool accept(int rank);
  std::span<const std::byte> mailbox_memory(int in_neighbor) const {
    return *find_in_edge(in_neighbor)->memory;
  }
  std::span<const std::byte> published_memory() const { return *published_memory_; }

  bool has_in_neighbor(int rank) const { return find_in_edge(rank) != nullptr; }
  // Returns the writer for values of an in-neighbor that arrive as messages.
  MailboxWriter& writer_for(int in_neighbor);
  // Publishes the back slot of an in-neighbor without shared memory: as the sum with
  // the pending value, or as a value alone. Returns false if nothing is pending for the
  // sum, or if something is pending for the value alone.
  bool publish_for(int in_neighbor, Mailbox::Meta meta, bool is_sum);
  // Notes an out-neighbor's answer to a publication: the back slot from now on. The
  // peer may send any number.
  void note_back(int out_neighbor, int back_slot, bool was_published);
  // Notes that a publication has failed, so the back slot at the neighbor is unknown.
  void forget_back(int out_neighbor);
  // Replaces the value that an in-neighbor has left; see MailboxReader::replace().
  void replace(int in_neighbor, std::vector<std::byte>& bytes, Mailbox::Meta meta);
  PublishedValue& published() { return published_; }
  // Returns the number of a rank as a reader of published(), or nothing if it is none.
  // In a window with config().ranks this rank itself is a reader, too.
  std::optional<std::size_t> reader_number(int rank) const;
  // Returns how many readers published() has room for.
  std::size_t readers() const;

  MutexQueue mutex_queue;    // for this rank's mutex
  std::set<int> sees_value;  // ranks to which the own value has been shared

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
    std::optional<PublishedValue::View> begun GUARDED_BY(mutex);  // by begin_get()
    bool is_retired GUARDED_BY(mutex) = false;
    // Whether the next update still uses the value of this edge, which is retired.
    bool has_last GUARDED_BY(mutex) = false;
  };

  struct OutEdge {
    Mutex mutex;
    // The mailbox in the neighbor's memory, if it shares it.
    SharedBytes shared GUARDED_BY(mutex);
    std::optional<MailboxWriter> writer GUARDED_BY(mutex);
    std::uint64_t signal GUARDED_BY(mutex) = 0;  // of the next publication
    // For device values: the answers of a neighbor without shared memory.
    std::uint32_t back GUARDED_BY(mutex) = Mailbox::kFirstBack;
    std::optional<std::uint32_t> pending GUARDED_BY(mutex);
    bool was_published GUARDED_BY(mutex) = true;
    bool has_back GUARDED_BY(mutex) = true;
    bool accepts GUARDED_BY(mutex) = false;  // the neighbor has made the mailbox
    bool is_retired GUARDED_BY(mutex) = false;
  };

  using Initial = std::shared_ptr<const std::vector<std::byte>>;

  // Return null if there is no such edge. The pointers stay valid as long as the
  // window.
  InEdge* find_in_edge(int rank) const EXCLUDES(edges_mutex_);
  OutEdge* find_out_edge(int rank) const EXCLUDES(edges_mutex_);
  InEdge& in_edge(int rank) const;
  // Returns the edge to a rank, which it adds if the window may get more edges.
  OutEdge* reach_out_edge(int rank) EXCLUDES(edges_mutex_);
  std::unique_ptr<InEdge> make_in_edge(const Initial& initial) const;
  Initial initial_of(std::span<const std::byte> value) const;
  Memory allocate_published() const;
  void publish_locked(std::span<const std::byte> own) REQUIRES(own_mutex_);

  const WindowConfig config_;
  const std::function<Memory(std::size_t)> allocate_;
  // Guards the maps, not the edges. Held only to find or add an edge; no other mutex is
  // taken meanwhile.
  mutable Mutex edges_mutex_;
  std::map<int, std::unique_ptr<InEdge>> in_edges_ GUARDED_BY(edges_mutex_);
  std::map<int, std::unique_ptr<OutEdge>> out_edges_ GUARDED_BY(edges_mutex_);
  Mutex own_mutex_;  // also guards the writing side of published_
  double p_ GUARDED_BY(own_mutex_) = 1.0;
  Memory published_memory_;
  PublishedValue published_;
  std::optional<std::uint32_t> reserved_ GUARDED_BY(own_mutex_);
};

}  // namespace bluecomm
