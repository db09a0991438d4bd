#include "kernels/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/half.h"
#include "tests/check.h"
#include "tests/kernels/levels.h"

namespace bluecomm {
namespace {

constexpr std::uint32_t kAllHalves = 65536;

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> halves(kAllHalves);
  for (std::uint32_t i = 0; i < kAllHalves; ++i) halves[i] = static_cast<uint16_t>(i);
  return halves;
}

std::vector<float> widen_all(DType half, CpuLevel level) {
  const std::vector<std::uint16_t> halves = all_halves();
  std::vector<float> wide(kAllHalves);
  widen(wide, std::as_bytes(std::span(halves)), half, level);
  return wide;
}

// Returns the value of a float16 by its definition.
double float16_value(std::uint32_t bits) {
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((bits >> 10) & 31u);
  const double mantissa = bits & 0x3ffu;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024.0 + mantissa, exponent - 25);
}

// Returns floats over the whole range, with dense samples where float16 and bfloat16
// are rounded.
std::vector<float> sample_floats() {
  std::vector<float> floats;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 12289) {
    floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  // Each float16 and bfloat16 value, the ties above them, and their neighbors.
  for (std::uint32_t i = 0; i < kAllHalves; ++i) {
    const float of_float16 = float16_to_float32(static_cast<std::uint16_t>(i));
    const std::uint32_t start16 = std::bit_cast<std::uint32_t>(of_float16);
    const std::uint32_t start_b16 = i << 16;
    for (const std::uint32_t step : {0u, 1u, 0xfffu, 0x1000u, 0x1001u}) {
      floats.push_back(std::bit_cast<float>(start16 + step));
    }
    for (const std::uint32_t step : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u}) {
      floats.push_back(std::bit_cast<float>(start_b16 + step));
    }
  }
  return floats;
}

std::vector<std::uint16_t> narrow_all(const std::vector<float>& floats, DType half,
                                      CpuLevel level) {
  std::vector<std::uint16_t> halves(floats.size());
  narrow(std::as_writable_bytes(std::span(halves)), floats, half, level);
  return halves;
}

TEST(convert, float16_widens_to_its_value) {
  const std::vector<float> wide = widen_all(DType::kFloat16, CpuLevel::kBaseline);
  for (std::uint32_t i = 0; i < kAllHalves; ++i) {
    const bool is_nan = (i & 0x7c00u) == 0x7c00u && (i & 0x3ffu) != 0;
    const bool is_infinite = (i & 0x7fffu) == 0x7c00u;
    if (is_nan) {
      CHECK(std::isnan(wide[i]));
    } else if (is_infinite) {
      CHECK(std::isinf(wide[i]) && std::signbit(wide[i]) == ((i & 0x8000u) != 0));
    } else {
      CHECK_EQ(static_cast<double>(wide[i]), float16_value(i));
      CHECK(std::signbit(wide[i]) == ((i & 0x8000u) != 0));
    }
  }
}

TEST(convert, every_level_widens_to_the_same_bits) {
  for (const DType half : {DType::kFloat16, DType::kBfloat16}) {
    const std::vector<float> expected = widen_all(half, CpuLevel::kBaseline);
    for (const CpuLevel level : test::levels()) {
      const std::vector<float> got = widen_all(half, level);
      CHECK(std::memcmp(got.data(), expected.data(), 4 * got.size()) == 0);
    }
  }
}

TEST(convert, every_level_narrows_to_the_same_bits) {
  const std::vector<float> floats = sample_floats();
  for (const DType half : {DType::kFloat16, DType::kBfloat16}) {
    const std::vector<std::uint16_t> expected =
        narrow_all(floats, half, CpuLevel::kBaseline);
    for (const CpuLevel level : test::levels()) {
      CHECK(narrow_all(floats, half, level) == expected);
    }
  }
}

TEST(convert, narrowing_reverses_widening) {
  const std::vector<std::uint16_t> halves = all_halves();
  for (const DType half : {DType::kFloat16, DType::kBfloat16}) {
    const std::vector<float> wide = widen_all(half, cpu_level());
    const std::vector<std::uint16_t> back = narrow_all(wide, half, cpu_level());
    for (std::uint32_t i = 0; i < kAllHalves; ++i) {
      if (!std::isnan(wide[i])) CHECK_EQ(back[i], halves[i]);
    }
  }
}

// The result is at least as close as both of its neighbors, and even in a tie.
TEST(convert, float16_rounds_to_nearest_even) {
  const std::vector<float> floats = sample_floats();
  const std::vector<std::uint16_t> halves =
      narrow_all(floats, DType::kFloat16, CpuLevel::kBaseline);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const double value = std::abs(static_cast<double>(floats[i]));
    const std::uint32_t magnitude = halves[i] & 0x7fffu;
    if (std::isnan(floats[i])) {
      CHECK(magnitude > 0x7c00u);
    } else if (value >= 65520.0) {  // halfway between the largest number and 2^16
      CHECK_EQ(magnitude, 0x7c00u);
    } else {
      REQUIRE(magnitude < 0x7c00u);
      const double error = std::abs(value - float16_value(magnitude));
      const double above = std::abs(float16_value(magnitude + 1) - value);
      const double below =
          magnitude == 0 ? 1.0 : std::abs(float16_value(magnitude - 1) - value);
      const bool is_even = (magnitude & 1u) == 0;
      CHECK(error < above || (error == above && is_even));
      CHECK(error < below || (error == below && is_even));
    }
  }
}

TEST(convert, bfloat16_rounds_to_nearest_even) {
  CHECK_EQ(float32_to_bfloat16(1.0f), 0x3f80);
  CHECK_EQ(float32_to_bfloat16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie
  CHECK_EQ(float32_to_bfloat16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie
  CHECK_EQ(float32_to_bfloat16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  CHECK_EQ(float32_to_bfloat16(-std::bit_cast<float>(0x3f807fffu)), 0xbf80);
  CHECK_EQ(float32_to_bfloat16(std::numeric_limits<float>::max()), 0x7f80);
  CHECK_EQ(float32_to_bfloat16(std::numeric_limits<float>::quiet_NaN()), 0x7fc0);
  CHECK_EQ(float32_to_bfloat16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
}

}  // namespace
}  // namespace bluecomm
