#include "kernels/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/at_level.h"
#include "kernels/convert.h"
#include "kernels/unaligned.h"

namespace bluecomm {
namespace {

// The blocks of all rows are in the cache while their products are computed.
constexpr std::size_t kBlock = 256;  // items
constexpr std::size_t kLanes = 8;    // partial sums, added at the end of a block

template <typename Item>
void widen_plain(CpuLevel level, double* dst, const std::byte* src,
                 const ScalePair& scale, std::size_t count) {
  const Unaligned<Item>* const items = unaligned<Item>(src);
  at_level(level, [=]() BLUECOMM_INLINE {
    for (std::size_t i = 0; i < count; ++i) {
      dst[i] = scale.second * (scale.first * static_cast<double>(items[i].value));
    }
  });
}

// Converts the `count` items at `src`, times `scale`, to double, and fills `dst` up to
// kBlock with zeros.
void load_block(CpuLevel level, double* dst, const std::byte* src,
                const ScalePair& scale, std::size_t count, DType dtype) {
  std::fill(dst + count, dst + kBlock, 0.0);
  if (dtype == DType::kFloat64)
    return widen_plain<double>(level, dst, src, scale, count);
  if (dtype == DType::kFloat32)
    return widen_plain<float>(level, dst, src, scale, count);
  std::array<float, kBlock> single;
  widen({single.data(), count}, {src, count * item_size(dtype)}, dtype, level);
  const auto bytes = std::as_bytes(std::span(single));
  widen_plain<float>(level, dst, bytes.data(), scale, count);
}

double multiply_blocks(CpuLevel level, const double* a, const double* b) {
  std::array<double, kLanes> sums{};
  double* const out = sums.data();
  at_level(level, [=]() BLUECOMM_INLINE {
    double lanes[kLanes] = {};
    for (std::size_t i = 0; i < kBlock; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += a[i + lane] * b[i + lane];
      }
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) out[lane] = lanes[lane];
  });
  double sum = 0.0;
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace

ScalePair divide_by_power(int exponent) {
  const int half = exponent / 2;
  return {std::ldexp(1.0, -half), std::ldexp(1.0, half - exponent)};
}

int row_exponent(std::span<const std::byte> row, DType dtype) {
  constexpr int kOfZeros = -1100;  // smaller than that of any number
  if (dtype != DType::kFloat64) return 0;
  const Unaligned<double>* const items = unaligned<double>(row.data());
  double largest = 0.0;
  for (std::size_t i = 0; i < row.size() / sizeof(double); ++i) {
    largest = std::max(largest, std::abs(items[i].value));
  }
  if (largest == 0.0) return kOfZeros;
  return std::isinf(largest) ? 0 : std::ilogb(largest);
}

void add_products(std::span<double> products, std::span<const std::byte* const> rows,
                  std::span<const int> exponents, std::size_t nbytes, DType dtype,
                  CpuLevel level) {
  const std::size_t item = item_size(dtype);
  const std::size_t count = nbytes / item;
  std::vector<double> blocks(rows.size() * kBlock);
  for (std::size_t start = 0; start < count; start += kBlock) {
    const std::size_t length = std::min(kBlock, count - start);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      double* const block = blocks.data() + i * kBlock;
      load_block(level, block, rows[i] + start * item, divide_by_power(exponents[i]),
                 length, dtype);
      for (std::size_t j = 0; j <= i; ++j) {
        products[pair_index(i, j)] +=
            multiply_blocks(level, block, blocks.data() + j * kBlock);
      }
    }
  }
}

}  // namespace bluecomm
