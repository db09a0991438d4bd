#include "common/dtype.h"

namespace bluecomm {

std::size_t item_size(DType dtype) noexcept {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
    case DType::kBool:
    case DType::kFloat8E4m3fn:
    case DType::kFloat8E5m2:
    case DType::kFloat8E4m3fnuz:
    case DType::kFloat8E5m2fnuz:
      return 1;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
    case DType::kInt32:
    case DType::kUInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kFloat64:
    case DType::kComplex64:
      return 8;
    case DType::kComplex128:
      return 16;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kUInt8:
      return "uint8";
    case DType::kInt8:
      return "int8";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kFloat16:
      return "float16";
    case DType::kBfloat16:
      return "bfloat16";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBool:
      return "bool";
    case DType::kUInt16:
      return "uint16";
    case DType::kUInt32:
      return "uint32";
    case DType::kUInt64:
      return "uint64";
    case DType::kComplex64:
      return "complex64";
    case DType::kComplex128:
      return "complex128";
    case DType::kFloat8E4m3fn:
      return "float8_e4m3fn";
    case DType::kFloat8E5m2:
      return "float8_e5m2";
    case DType::kFloat8E4m3fnuz:
      return "float8_e4m3fnuz";
    case DType::kFloat8E5m2fnuz:
      return "float8_e5m2fnuz";
  }
  return "unknown";
}

std::optional<DType> dtype_from_name(std::string_view name) noexcept {
  for (int value = 0; value < kDTypeCount; ++value) {
    const auto dtype = static_cast<DType>(value);
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_value(std::uint8_t value) noexcept {
  if (value >= kDTypeCount) return std::nullopt;
  return static_cast<DType>(value);
}

bool is_floating(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBfloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kComplex64:
    case DType::kComplex128:
      return true;
    default:
      return false;
  }
}

bool is_only_moved(DType dtype) noexcept {
  return dtype >= DType::kFloat8E4m3fn && dtype <= DType::kFloat8E5m2fnuz;
}

bool is_complex(DType dtype) noexcept { return real_dtype(dtype) != dtype; }

DType real_dtype(DType dtype) noexcept {
  switch (dtype) {
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

}  // namespace bluecomm
