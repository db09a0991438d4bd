// Typed access to memory of unknown alignment and type.
#pragma once

#include <cstddef>

namespace bluecomm {

// An element at an address of any alignment. Reading it is a plain unaligned load.
template <typename T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

template <typename T>
const Unaligned<T>* unaligned(const std::byte* data) noexcept {
  return reinterpret_cast<const Unaligned<T>*>(data);
}

template <typename T>
Unaligned<T>* unaligned(std::byte* data) noexcept {
  return reinterpret_cast<Unaligned<T>*>(data);
}

}  // namespace bluecomm
