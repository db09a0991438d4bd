#include "window/published_value.h"

#include <algorithm>
#include <new>

#include "window/cache_line.h"

namespace bluecomm {
namespace {

// The memory holds, in this order: a line with the number of the current slot, a line
// for each reader, the p of each slot, and the slots.
using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free);

std::size_t p_offset(std::size_t readers) { return kCacheLine * (1 + readers); }

std::size_t slots_offset(std::size_t readers) {
  return p_offset(readers) + whole_lines((readers + 2) * sizeof(double));
}

template <typename T>
T& at(std::span<std::byte> memory, std::size_t offset) {
  return *std::launder(reinterpret_cast<T*>(memory.data() + offset));
}

}  // namespace

std::size_t PublishedValue::nbytes_for(std::size_t tensor_nbytes, std::size_t readers) {
  return slots_offset(readers) + (readers + 2) * whole_lines(tensor_nbytes);
}

PublishedValue::PublishedValue(std::span<std::byte> memory, std::size_t tensor_nbytes,
                               std::size_t readers)
    : memory_(memory), tensor_nbytes_(tensor_nbytes), readers_(readers) {}

void PublishedValue::initialize(std::span<std::byte> memory, std::size_t readers) {
  for (std::size_t line = 0; line < 1 + readers; ++line) {
    new (memory.data() + line * kCacheLine) Word(0);
  }
  for (std::size_t slot = 0; slot < readers + 2; ++slot) {
    new (memory.data() + p_offset(readers) + slot * sizeof(double)) double(1.0);
  }
}

Word& PublishedValue::current() const { return at<Word>(memory_, 0); }

// Returns the word of a reader: the number of the slot that it reads plus 1, or 0.
Word& PublishedValue::reading(std::size_t reader) const {
  return at<Word>(memory_, kCacheLine * (1 + reader));
}

double& PublishedValue::p(std::uint32_t slot) const {
  return at<double>(memory_, p_offset(readers_) + slot * sizeof(double));
}

std::span<std::byte> PublishedValue::slot(std::uint32_t slot) const {
  return memory_.subspan(slots_offset(readers_) + slot * whole_lines(tensor_nbytes_),
                         tensor_nbytes_);
}

std::uint32_t PublishedValue::free_slot() const {
  const std::uint32_t now = current().load();
  for (std::uint32_t slot = 0; slot + 1 < slots(); ++slot) {
    bool is_free = slot != now;
    for (std::size_t reader = 0; is_free && reader < readers_; ++reader) {
      is_free = reading(reader).load() != slot + 1;
    }
    if (is_free) return slot;
  }
  return static_cast<std::uint32_t>(slots() - 1);
}

void PublishedValue::publish(std::span<const std::byte> value, double p_of_value) {
  const std::uint32_t next = free_slot();
  std::copy(value.begin(), value.end(), slot(next).begin());
  make_current(next, p_of_value);
}

void PublishedValue::make_current(std::uint32_t slot, double p_of_value) {
  p(slot) = p_of_value;
  current().store(slot);
}

PublishedValue::View PublishedValue::begin_read(std::size_t reader) {
  // These accesses and the writer's accesses to the same words have one total order. So
  // either the writer sees the slot that is read here, or this reader sees that the
  // slot is no longer current.
  std::uint32_t seen = current().load();
  while (true) {
    reading(reader).store(seen + 1);
    const std::uint32_t now = current().load();
    if (now == seen) break;
    seen = now;
  }
  const auto index = static_cast<std::uint32_t>(seen % slots());
  return {slot(index), p(index), index};
}

void PublishedValue::end_read(std::size_t reader) { reading(reader).store(0); }

}  // namespace bluecomm
