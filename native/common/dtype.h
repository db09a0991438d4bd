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
  kUInt16 = 10,
  kUInt32 = 11,
  kUInt64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  kFloat8E4m3fn = 15,
  kFloat8E5m2 = 16,
  kFloat8E4m3fnuz = 17,
  kFloat8E5m2fnuz = 18,
};

inline constexpr int kDTypeCount = 19;

// Returns the number of bytes of one element.
std::size_t item_size(DType dtype) noexcept;

// Returns PyTorch's name without its module, such as "float32".
std::string_view dtype_name(DType dtype) noexcept;

// Returns the dtype called `name`, or nothing if there is none.
std::optional<DType> dtype_from_name(std::string_view name) noexcept;

// Returns the dtype with this value, or nothing if there is none. For values that come
// from a peer.
std::optional<DType> dtype_from_value(std::uint8_t value) noexcept;

// Returns whether the dtype can be weighted and averaged: the floating-point types that
// have arithmetic, and the complex types.
bool is_floating(DType dtype) noexcept;

// Returns whether the dtype has no arithmetic here, so that tensors can only be moved.
bool is_only_moved(DType dtype) noexcept;

bool is_complex(DType dtype) noexcept;

// Returns the type of both parts of a complex number; other types are their own.
DType real_dtype(DType dtype) noexcept;

}  // namespace bluecomm
