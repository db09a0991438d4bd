// The element types that tensors may have, in code order shared with Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bluecomm {

// The values go over the wire: append, never renumber.
enum class DType : std::uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kFloat16 = 5,
  kBfloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBool = 9,
};

inline constexpr int kDTypeCount = 10;

// Bytes of one element.
std::size_t item_size(DType dtype) noexcept;

// PyTorch's name without its module, such as "float32".
std::string_view dtype_name(DType dtype) noexcept;

// The dtype of that name, or nothing.
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

// The dtype with that value, or nothing; for values that come from a peer.
std::optional<DType> dtype_from_value(std::uint8_t value) noexcept;

// True for the four floating-point types, the only ones that weights and averages suit.
bool is_floating(DType dtype) noexcept;

}  // namespace bluecomm
