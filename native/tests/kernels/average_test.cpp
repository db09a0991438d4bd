// Averages: ranks that agree keep their values, and all others are rounded once.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/combine.h"
#include "tests/check.h"
#include "tests/kernels/levels.h"
#include "tests/kernels/reference.h"

namespace bluecomm {
namespace {

constexpr DType kFloatTypes[] = {DType::kFloat16, DType::kBfloat16, DType::kFloat32,
                                 DType::kFloat64};
constexpr std::size_t kMostTerms = 17;

bool is_nan(const std::byte* item, DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return std::isnan(float16_to_float32(test::item_at<std::uint16_t>(item, 0)));
    case DType::kBfloat16:
      return std::isnan(bfloat16_to_float32(test::item_at<std::uint16_t>(item, 0)));
    case DType::kFloat32:
      return std::isnan(test::item_at<float>(item, 0));
    default:
      return std::isnan(test::item_at<double>(item, 0));
  }
}

// Random bits: numbers of all magnitudes, subnormal ones and infinities. There are no
// NaNs, whose bits may change.
std::vector<std::byte> random_bits(DType dtype, std::size_t count,
                                   std::mt19937_64& random) {
  const std::size_t item = item_size(dtype);
  std::vector<std::byte> data(count * item);
  for (std::size_t i = 0; i < count; ++i) {
    do {
      const std::uint64_t bits = random();
      std::memcpy(data.data() + i * item, &bits, item);
    } while (is_nan(data.data() + i * item, dtype));
  }
  // Zeros of both signs, and the smallest number.
  std::fill_n(data.begin(), 2 * item, std::byte{0});
  data[2 * item - 1] = std::byte{0x80};
  std::fill_n(data.begin() + 2 * item, item, std::byte{0});
  data[2 * item] = std::byte{1};
  return data;
}

// Weights that add up to 1, up to rounding.
std::vector<double> random_average(std::size_t count, std::mt19937_64& random) {
  std::uniform_real_distribution<double> draw(0.05, 1.0);
  std::vector<double> weights;
  double sum = 0.0;
  for (std::size_t t = 0; t < count; ++t) sum += weights.emplace_back(draw(random));
  for (double& weight : weights) weight /= sum;
  return weights;
}

void check_kept(DType dtype, const std::vector<double>& weights, double post_scale,
                std::mt19937_64& random) {
  const std::vector<std::byte> data = random_bits(dtype, 700, random);
  std::vector<Term> terms;
  for (const double weight : weights) terms.push_back({data.data(), weight});
  for (const CpuLevel level : test::levels()) {
    std::vector<std::byte> out(data.size());
    combine_weighted(out, terms, post_scale, dtype, level);
    if (out != data) {
      test::record_failure(__FILE__, __LINE__,
                           "the average of " + std::to_string(weights.size()) +
                               " equal tensors of " + std::string(dtype_name(dtype)) +
                               " differs from them");
    }
  }
}

TEST(average, keeps_what_all_terms_agree_on) {
  std::mt19937_64 random(1);
  for (const DType dtype : kFloatTypes) {
    for (std::size_t n = 2; n <= kMostTerms; ++n) {
      const double uniform = 1.0 / static_cast<double>(n);
      check_kept(dtype, std::vector<double>(n, uniform), 1.0, random);
      check_kept(dtype, std::vector<double>(n, 1.0), uniform, random);
      check_kept(dtype, random_average(n, random), 1.0, random);
      std::vector<double> centered(n, uniform / 2);  // as in a lazy random walk
      centered[n / 2] = 0.5 + uniform / 2;
      check_kept(dtype, centered, 1.0, random);
    }
  }
}

// Returns the distance of `got` from the exact value, in units in the last place.
template <typename T>
double error_in_ulps(T got, test::Exact exact) {
  const T up = std::nextafter(std::abs(got), std::numeric_limits<T>::infinity());
  const auto unit = static_cast<test::Exact>(up - std::abs(got));
  return std::abs(static_cast<double>((static_cast<test::Exact>(got) - exact) / unit));
}

// Returns the largest error of an average of n tensors.
template <typename T>
double largest_error(DType dtype, const std::vector<double>& weights, CpuLevel level,
                     std::mt19937_64& random) {
  constexpr std::size_t kCount = 500;
  std::normal_distribution<double> normal;
  std::vector<std::vector<T>> tensors(weights.size(), std::vector<T>(kCount));
  std::vector<Term> terms;
  for (std::vector<T>& tensor : tensors) {
    for (T& item : tensor) item = static_cast<T>(normal(random));
    terms.push_back({std::as_bytes(std::span(tensor)).data(), weights[terms.size()]});
  }
  std::vector<T> out(kCount);
  combine_weighted(std::as_writable_bytes(std::span(out)), terms, 1.0, dtype, level);
  double largest = 0.0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto read = [&](std::size_t t) { return tensors[t][i]; };
    const test::Exact exact = test::sum_exactly(terms, 1.0, read);
    largest = std::max(largest, error_in_ulps(out[i], exact));
  }
  return largest;
}

TEST(average, is_rounded_once) {
  constexpr double kHalf = 0.5 + 1e-4;  // and the roundings of the wider type
  std::mt19937_64 random(2);
  for (std::size_t n = 2; n <= kMostTerms; ++n) {
    const std::vector<double> uniform(n, 1.0 / static_cast<double>(n));
    const std::vector<double> weights = random_average(n, random);
    for (const CpuLevel level : test::levels()) {
      for (const auto& some : {uniform, weights}) {
        CHECK(largest_error<float>(DType::kFloat32, some, level, random) <= kHalf);
        CHECK(largest_error<double>(DType::kFloat64, some, level, random) <= kHalf);
      }
    }
  }
}

// bfloat16 has 8 bits, so 128.5 is half way between two numbers.
TEST(average, of_bfloat16_rounds_ties_to_even) {
  const std::uint16_t low = float32_to_bfloat16(128.0f);
  const std::uint16_t high = float32_to_bfloat16(129.0f);
  for (const CpuLevel level : test::levels()) {
    for (std::size_t n = 2; n <= kMostTerms; n += 2) {
      std::vector<Term> terms;
      for (std::size_t t = 0; t < n; ++t) {
        const auto item = std::as_bytes(std::span(t % 2 == 0 ? &low : &high, 1));
        terms.push_back({item.data(), 1.0 / static_cast<double>(n)});
      }
      std::uint16_t out = 0;
      combine_weighted(std::as_writable_bytes(std::span(&out, 1)), terms, 1.0,
                       DType::kBfloat16, level);
      CHECK_EQ(bfloat16_to_float32(out), 128.0f);
    }
  }
}

// Float64 has a fast method, which fails for items that are very large or small. Terms
// have magnitudes like each other, so that their sums cancel or become subnormal.
TEST(average, of_doubles_of_any_magnitude_is_the_same_at_every_level) {
  std::mt19937_64 random(4);
  for (const std::size_t n : {2, 3, 4, 9}) {
    std::vector<std::vector<double>> tensors(n, std::vector<double>(1003));
    for (std::size_t i = 0; i < tensors[0].size(); ++i) {
      const int exponent = static_cast<int>(random() % 2090) - 1080;
      for (std::vector<double>& tensor : tensors) {
        const double item = static_cast<double>(random()) * 0x1p-63 - 1.0;
        const int apart = static_cast<int>(random() % 4) * 30;
        tensor[i] = random() % 4 == 0 ? -0.0 : std::ldexp(item, exponent - apart);
      }
    }
    for (const auto& weights :
         {random_average(n, random), std::vector<double>(n, 1.0 / 3.0)}) {
      std::vector<Term> terms;
      for (const std::vector<double>& tensor : tensors) {
        terms.push_back(
            {std::as_bytes(std::span(tensor)).data(), weights[terms.size()]});
      }
      std::vector<std::vector<double>> results;
      for (const CpuLevel level : test::levels()) {
        std::vector<double>& out = results.emplace_back(tensors[0].size());
        combine_weighted(std::as_writable_bytes(std::span(out)), terms, 1.0,
                         DType::kFloat64, level);
        CHECK(std::memcmp(out.data(), results[0].data(), 8 * out.size()) == 0);
      }
      for (std::size_t i = 0; i < tensors[0].size(); ++i) {
        const auto read = [&](std::size_t t) { return tensors[t][i]; };
        const auto exact = static_cast<double>(test::sum_exactly(terms, 1.0, read));
        // Products that are subnormal are rounded before they are added.
        const double unit = std::max(std::abs(exact) * 0x1p-52, 0x1p-1071);
        CHECK(std::abs(results[0][i] - exact) <= unit);
      }
    }
  }
}

// The smallest weight makes no difference but does not fit into float32. Without the
// third, the sum would be half way between two numbers.
TEST(average, of_halves_with_weights_beyond_float32_is_rounded_once) {
  const auto check = [](DType dtype, std::uint16_t one, double half_unit,
                        std::uint16_t next) {
    const auto data = std::as_bytes(std::span(&one, 1)).data();
    const std::vector<Term> terms = {
        {data, 1.0}, {data, half_unit}, {data, 0x1p-40}, {data, 0x1p-140}};
    for (const CpuLevel level : test::levels()) {
      std::uint16_t out = 0;
      combine_weighted(std::as_writable_bytes(std::span(&out, 1)), terms, 1.0, dtype,
                       level);
      CHECK_EQ(out, next);
    }
  };
  check(DType::kFloat16, float32_to_float16(1.0f), 0x1p-11,
        float32_to_float16(1.0f + 0x1p-10f));
  check(DType::kBfloat16, float32_to_bfloat16(1.0f), 0x1p-8,
        float32_to_bfloat16(1.0f + 0x1p-7f));
}

TEST(average, does_not_overflow) {
  const double most = std::numeric_limits<double>::max();
  const std::vector<double> items = {most, most, -most, 0.75 * most, most};
  std::vector<Term> terms;
  for (const double& item : items) {
    terms.push_back({std::as_bytes(std::span(&item, 1)).data(), 0.2});
  }
  for (const CpuLevel level : test::levels()) {
    double out = 0.0;
    combine_weighted(std::as_writable_bytes(std::span(&out, 1)), terms, 1.0,
                     DType::kFloat64, level);
    CHECK_EQ(out, 0.55 * most);
  }
}

// float32 has its own loop for two terms. The sums overflow, are subnormal or cancel.
TEST(average, of_two_floats_of_any_magnitude_is_rounded_once) {
  const float most = std::numeric_limits<float>::max();
  const float least = std::numeric_limits<float>::denorm_min();
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> first = {most, most, -most, least, 3 * least, -0.0f, infinity};
  std::vector<float> second = {most, 0.75f * most, most, 0.0f, least, -0.0f, most};
  std::mt19937 random(3);
  while (first.size() < 3000) {
    const auto a = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const auto near = static_cast<std::uint32_t>(std::bit_cast<std::uint32_t>(a) +
                                                 random() % (1u << 26));
    if (std::isfinite(a) && std::isfinite(std::bit_cast<float>(near))) {
      first.push_back(a);
      second.push_back(std::bit_cast<float>(near));
    }
  }
  const std::vector<Term> terms = {{std::as_bytes(std::span(first)).data(), 0.5},
                                   {std::as_bytes(std::span(second)).data(), 0.5}};
  for (const CpuLevel level : test::levels()) {
    std::vector<float> out(first.size());
    combine_weighted(std::as_writable_bytes(std::span(out)), terms, 1.0,
                     DType::kFloat32, level);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const test::Exact sum = test::Exact(first[i]) + test::Exact(second[i]);
      const auto exact = static_cast<float>(sum / 2);
      CHECK_EQ(std::bit_cast<std::uint32_t>(out[i]),
               std::bit_cast<std::uint32_t>(exact));
    }
  }
}

}  // namespace
}  // namespace bluecomm
