#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bluecomm {

// A rank's own value as its out-neighbors see it: one writer and several readers, which
// copy it at any time, without a lock.
//
// Each reader has a word that names the slot that it reads. The writer fills a slot
// that is neither current nor being read. There are two more slots than readers, so
// such a slot always exists, even if readers have died while reading.
class PublishedValue {
 public:
  struct View {
    std::span<const std::byte> bytes;
    double p = 1.0;
    std::uint32_t slot = 0;
  };

  static std::size_t nbytes_for(std::size_t tensor_nbytes, std::size_t readers);

  // Refers to `memory`, which is aligned to 64 bytes and has been initialized.
  PublishedValue(std::span<std::byte> memory, std::size_t tensor_nbytes,
                 std::size_t readers);
  static void initialize(std::span<std::byte> memory, std::size_t readers);

  // Makes `value` and `p` current. Called by the writer, on one thread at a time.
  void publish(std::span<const std::byte> value, double p);
  // The same in two steps: fill a slot that is neither current nor being read, and make
  // it current.
  std::uint32_t free_slot() const;
  void make_current(std::uint32_t slot, double p);

  // Returns the current value, which stays unchanged until end_read(). Called by reader
  // number `reader`, on one thread at a time.
  View begin_read(std::size_t reader);
  void end_read(std::size_t reader);

 private:
  std::size_t slots() const { return readers_ + 2; }
  std::atomic<std::uint32_t>& current() const;
  std::atomic<std::uint32_t>& reading(std::size_t reader) const;
  double& p(std::uint32_t slot) const;
  std::span<std::byte> slot(std::uint32_t slot) const;

  std::span<std::byte> memory_;
  std::size_t tensor_nbytes_;
  std::size_t readers_;
};

}  // namespace bluecomm
