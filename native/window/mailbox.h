#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/dtype.h"

// What one in-neighbor leaves for one rank: one writer, one reader, no lock.
//
// Three slots change places by one atomic word: the writer fills its *back* slot, the
// *middle* one is published, the reader holds the *front* one. A publication says SET x
// or ADD x. Until it is taken, the next one takes its place: a put replaces it, an
// accumulate replaces it by their sum. If the reader takes it while that sum is made,
// the word has changed and ADD x alone is published, so nothing is lost or counted
// twice; a publication is taken at most once, so one retry is enough.
//
// The reader never writes a slot, so the writer may read what it has published even
// while it is taken. A reader or writer that dies in the middle leaves the word, and
// what was published last, as they were. See docs/notes/windows.md.

namespace bluecomm {

// The memory of a mailbox, which both sides may have mapped.
class Mailbox {
 public:
  static constexpr std::size_t kSlots = 3;

  struct Meta {
    double p = 0.0;
    bool carries_p = false;
  };

  // The word. `puts` counts all puts ever published.
  struct State {
    std::uint32_t index = 0;
    bool is_fresh = false;  // published, and not taken yet
    bool adds = false;
    std::uint64_t puts = 0;

    std::uint64_t pack() const;
    static State unpack(std::uint64_t word);
  };

  static std::size_t nbytes_for(std::size_t tensor_nbytes);

  // Of `memory`, aligned to 64 bytes, that has been initialized; see initialize().
  Mailbox(std::span<std::byte> memory, std::size_t tensor_nbytes, DType dtype);

  // Makes an empty mailbox: the writer's back slot is kFirstBack, the reader's front
  // slot kFirstFront.
  static constexpr std::uint32_t kFirstBack = 1;
  static constexpr std::uint32_t kFirstFront = 2;
  static void initialize(std::span<std::byte> memory);

  DType dtype() const { return dtype_; }
  std::size_t tensor_nbytes() const { return tensor_nbytes_; }
  std::span<std::byte> slot(std::uint32_t index) const;
  Meta& meta(std::uint32_t index) const;
  std::atomic<std::uint64_t>& word() const;

 private:
  struct Layout;
  Layout& layout() const;

  std::span<std::byte> memory_;
  std::size_t tensor_nbytes_;
  DType dtype_;
};

// The in-neighbor's side. One thread at a time.
class MailboxWriter {
 public:
  explicit MailboxWriter(Mailbox mailbox) : mailbox_(mailbox) {}

  // Publishes SET weight * x, or ADD weight * x. For integers the weight is 1 or 0.
  void put(std::span<const std::byte> x, double weight, Mailbox::Meta meta);
  void accumulate(std::span<const std::byte> x, double weight, Mailbox::Meta meta);

  // A put in two steps, for values that come bit by bit: fill back(), then publish.
  std::span<std::byte> back() const { return mailbox_.slot(back_); }
  void publish_put(Mailbox::Meta meta);

 private:
  Mailbox mailbox_;
  std::uint32_t back_ = Mailbox::kFirstBack;
  std::uint64_t puts_ = 0;
};

// The owner's side: the value that the neighbor has left so far. One thread at a time.
class MailboxReader {
 public:
  // `initial` is the value before the first put; null: zero.
  MailboxReader(Mailbox mailbox, std::shared_ptr<const std::vector<std::byte>> initial);

  // Brings the value up to date with what has been published. True if anything was.
  bool take();
  // Makes the value zero, and p too if `with_p`.
  void reset(bool with_p);
  // Makes the value `bytes`, as long as the tensor; memory that is not needed any more
  // takes its place.
  void replace(std::vector<std::byte>& bytes, Mailbox::Meta meta);

  // The value; empty for zero (or a tensor without elements).
  std::span<const std::byte> value() const;
  double p() const { return p_; }

  // Publications and replacements since clear_version(), also those not taken yet.
  std::uint64_t version() const;
  // Counts anew from what has been taken.
  void clear_version();

 private:
  enum class ValueLocation { kZero, kInitial, kFront, kOwn };

  void copy_to_own();
  void add_front();

  Mailbox mailbox_;
  std::shared_ptr<const std::vector<std::byte>> initial_;
  ValueLocation location_;
  std::uint32_t front_ = Mailbox::kFirstFront;
  std::vector<std::byte> own_;
  double p_ = 0.0;
  std::uint64_t puts_taken_ = 0;
  std::uint64_t puts_before_ = 0;  // clear_version()
  std::uint64_t replaced_ = 0;     // since then
};

}  // namespace bluecomm
