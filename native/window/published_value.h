#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bluecomm {

// A rank's own value as its out-neighbors see it: one writer, several readers that copy
// it whenever they like, no lock.
//
// Each reader has a word in which it says what slot it reads; the writer fills a slot
// that is neither current nor being read. With two slots more than readers there is
// always one, also after readers have died in the middle.
class PublishedValue {
 public:
  struct View {
    std::span<const std::byte> bytes;
    double p = 1.0;
  };

  static std::size_t nbytes_for(std::size_t tensor_nbytes, std::size_t readers);

  // Of `memory`, aligned to 64 bytes, that has been initialized.
  PublishedValue(std::span<std::byte> memory, std::size_t tensor_nbytes,
                 std::size_t readers);
  static void initialize(std::span<std::byte> memory, std::size_t readers);

  // The writer; one thread at a time.
  void publish(std::span<const std::byte> value, double p);

  // Reader `reader`; one thread at a time. The view is valid until end_read().
  View begin_read(std::size_t reader);
  void end_read(std::size_t reader);

 private:
  std::size_t slots() const { return readers_ + 2; }
  std::atomic<std::uint32_t>& current() const;
  std::atomic<std::uint32_t>& reading(std::size_t reader) const;
  double& p(std::uint32_t slot) const;
  std::span<std::byte> slot(std::uint32_t slot) const;
  std::uint32_t free_slot() const;

  std::span<std::byte> memory_;
  std::size_t tensor_nbytes_;
  std::size_t readers_;
};

}  // namespace bluecomm
