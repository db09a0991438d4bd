// Typed access to memory of unknown alignment and type.
#pragma once

#include <cstddef>

namespace bluecomm {

// An element at any address. Reading one is a plain (unaligned) load.
template <typename T>
struct __attribute__((packed, may_alias)) Loose {
  T value;
};

template <typename T>
const Loose<T>* loose(const std::byte* data) noexcept {
  return reinterpret_cast<const Loose<T>*>(data);
}

template <typename T>
Loose<T>* loose(std::byte* data) noexcept {
  return reinterpret_cast<Loose<T>*>(data);
}

}  // namespace bluecomm
