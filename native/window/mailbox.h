#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/dtype.h"

// A mailbox holds the value that one in-neighbor, the writer, leaves for one rank, the
// reader, without a lock.
//
// Reader and writer exchange three slots through one atomic word: the writer fills its
// *back* slot, the *middle* slot is published, and the reader holds the *front* slot. A
// publication says SET x or ADD x. A publication that has not been taken is replaced by
// the next one: by x for a put, by the sum of both for an accumulate. If the reader
// takes it while the writer computes that sum, the word changes and the writer
// publishes ADD x alone, so nothing is lost or counted twice. Only one retry is needed,
// because a publication is taken at most once.
//
// The reader never writes a slot, so the writer may read its own publication even while
// it is being taken. If the reader or the writer dies, the word and the last
// publication stay valid. See docs/notes/windows.md.

namespace bluecomm {

// The memory of a mailbox, which both processes may have mapped.
class Mailbox {
 public:
  static constexpr std::size_t kSlots = 3;

  struct Meta {
    double p = 0.0;
    bool carries_p = false;
    // Number of the signal that the device's library raises at the reader behind a
    // device value; 0 if the value is there already.
    std::uint64_t signal = 0;
  };

  // The contents of the word. `puts` counts all puts ever published.
  struct State {
    std::uint32_t index = 0;
    bool is_fresh = false;  // published and not yet taken
    bool adds = false;
    std::uint64_t puts = 0;

    std::uint64_t pack() const;
    static State unpack(std::uint64_t word);
  };

  static std::size_t nbytes_for(std::size_t tensor_nbytes);

  // Refers to `memory`, which is aligned to 64 bytes and has been initialized with
  // initialize().
  Mailbox(std::span<std::byte> memory, std::size_t tensor_nbytes, DType dtype);

  // Makes `memory` an empty mailbox, in which kFirstBack is the writer's back slot and
  // kFirstFront the reader's front slot.
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

// The in-neighbor's side of a mailbox. Used by one thread at a time.
class MailboxWriter {
 public:
  explicit MailboxWriter(Mailbox mailbox) : mailbox_(mailbox) {}

  // Publish SET weight * x and ADD weight * x. Integers need a weight of 1 or 0.
  void put(std::span<const std::byte> x, double weight, Mailbox::Meta meta);
  void accumulate(std::span<const std::byte> x, double weight, Mailbox::Meta meta);

  // A put in two steps, for a value that arrives in parts: fill back(), then publish
  // it.
  std::span<std::byte> back() const { return mailbox_.slot(back_); }
  void publish_put(Mailbox::Meta meta);

  // An accumulate in two steps: fill back() with pending() plus x, and publish_sum().
  // If that returns false, because the reader has taken the pending value, or if none
  // is pending, fill back() with x, and publish_add().
  struct Pending {
    std::uint64_t word;
    std::uint32_t slot;
  };
  std::optional<Pending> pending() const;
  bool publish_sum(const Pending& pending, Mailbox::Meta meta);
  void publish_add(Mailbox::Meta meta);

  // The number of the slot back(), for device values.
  std::uint32_t back_slot() const { return back_ % Mailbox::kSlots; }

 private:
  Mailbox mailbox_;
  std::uint32_t back_ = Mailbox::kFirstBack;
  std::uint64_t puts_ = 0;
};

// The owner's side of a mailbox: the value that the neighbor has left so far. Used by
// one thread at a time.
class MailboxReader {
 public:
  // `initial` is the value before the first put; null stands for zero.
  MailboxReader(Mailbox mailbox, std::shared_ptr<const std::vector<std::byte>> initial);

  // Says whether a publication is pending, and how it changes the value. SET stays SET
  // until it is taken; a put makes a SET of an ADD.
  enum class Publication : std::uint8_t { kNone, kSet, kAdd };
  Publication next() const;
  // Applies the pending publication to the value, and says what it was.
  Publication take_next();
  // The same; returns whether a publication was pending.
  bool take() { return take_next() != Publication::kNone; }
  // Returns the signal behind the pending publication, or else behind the front slot.
  std::uint64_t next_signal() const;
  // The number of the front slot, for device values.
  std::uint32_t front_slot() const { return front_ % Mailbox::kSlots; }
  // Sets the value to zero, and p too if `with_p`.
  void reset(bool with_p);
  // Sets the value to `bytes`, which must be as long as the tensor, and returns memory
  // that the caller may reuse in `bytes`.
  void replace(std::vector<std::byte>& bytes, Mailbox::Meta meta);

  // Returns the value; empty if it is zero, or if the tensor has no elements.
  std::span<const std::byte> value() const;
  double p() const { return p_; }

  // Returns the number of puts and replacements since clear_version(), including puts
  // that have not been taken.
  std::uint64_t version() const;
  // Lets version() count from the puts that have been taken.
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
  std::uint64_t puts_before_ = 0;  // puts_taken_ at the last clear_version()
  std::uint64_t replaced_ = 0;     // replacements since then
};

}  // namespace bluecomm
