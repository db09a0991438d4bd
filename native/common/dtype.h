// The element types that tensors may have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bluecomm {

// The values are sent to peers: append, never renumber.
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

// Returns the number of bytes of one element.
std::size_t item_size(DType dtype) noexcept;

// Returns PyTorch's name without its module, such as "float32".
std::string_view dtype_name(DType dtype) noexcept;

// Returns the dtype called `name`, or nothing if there is none.
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

// Returns the dtype with this value, or nothing if there is none. For values that come
// from a peer.
std::optional<DType> dtype_from_value(std::uint8_t value) noexcept;

// Returns whether the dtype is one of the four floating-point types, which alone can be
// weighted and averaged.
bool is_floating(DType dtype) noexcept;

}  // namespace bluecomm
