#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

namespace bluecomm {

// Returns the bytes of a value without padding, to send or to hash.
template <typename T>
  requires std::has_unique_object_representations_v<T>
std::span<const std::byte> value_bytes(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

}  // namespace bluecomm
