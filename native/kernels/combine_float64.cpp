// Sums of float64 whose rounding errors are added up as well (Ogita, Rump and Oishi,
// "Accurate sum and dot product", SIAM J. Sci. Comput. 26(6), 2005).
//
// This is exact only if no number is so large or small that its error is not a double.
// Where the result is such a number, the item is summed again on its own.
#include "kernels/combine_float64.h"

#include <array>
#include <cmath>
#include <cstring>

#include "kernels/average_two.h"
#include "kernels/exact_lanes.h"
#include "kernels/exact_sum.h"
#include "kernels/groups.h"

namespace bluecomm {
namespace {

enum class ExactWeights {
  kEqual,     // terms are added, then the sum is multiplied
  kOwn,       // terms are multiplied by weights of their own
  kOwnRests,  // and by weights more precise than a double
};

// The sums of a block of items, to which groups of terms are added one by one.
struct ExactBlock {
  std::array<double, kSumBlock> sums;
  std::array<double, kSumBlock> errors;
};

// The terms and factors of one call, for items that are summed one by one.
struct AllTerms {
  std::span<const Term> terms;
  const ExactFactors& factors;
};

// Sums those of `count` items again that are not ordinary numbers.
__attribute__((noinline)) void mend(double* results, std::size_t count,
                                    const AllTerms& all, std::size_t index) {
  for (std::size_t k = 0; k < count; ++k) {
    if (Float64Item::are_ordinary(results[k])) continue;
    double magnitude = 0.0;
    for (const Term& term : all.terms) {
      magnitude += std::abs(unaligned<double>(term.data)[index + k].value);
    }
    if (magnitude > 0.0) results[k] = sum_exactly(all.terms, all.factors, index + k);
  }
}

// Adds `count` items of kTerms terms: begins the sums or continues those in `block`,
// and stores them there or writes the results to `dst`.
template <ExactWeights kWeights, std::size_t kTerms, bool kBegins, bool kEnds>
void add_group(CpuLevel level, std::byte* dst, ExactBlock& block, const Term* terms,
               const AllTerms& all_terms, std::size_t offset, std::size_t count) {
  const ExactFactors& factors = all_terms.factors;
  std::array<const std::byte*, kTerms> in;
  std::array<TwoPart, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = terms[t].data + offset * sizeof(double);
    if (kWeights != ExactWeights::kEqual) weight[t] = factors.weight(terms[t]);
  }
  TwoPart last;
  if constexpr (kWeights == ExactWeights::kEqual) {
    last = {factors.last().value * factors.share(),
            factors.last().rest * factors.share()};
  }
  const double excess = factors.excess();
  const AllTerms* const all = &all_terms;
  std::byte* const out = dst + offset * sizeof(double);
  double* const sums = block.sums.data();
  double* const errors = block.errors.data();
  for_lanes<Float64Item>(level, count, [=](auto lanes, std::size_t i) BLUECOMM_INLINE {
    using Computed = typename decltype(lanes)::Computed;
    Computed sum;
    Computed error{};
    if constexpr (!kBegins) {
      std::memcpy(&sum, sums + i, sizeof sum);
      std::memcpy(&error, errors + i, sizeof error);
    }
    for (std::size_t t = 0; t < kTerms; ++t) {
      Computed item;
      lanes.load(item, in[t], i);
      Computed product = item;
      if constexpr (kWeights != ExactWeights::kEqual) {
        Computed of_product;
        lanes.multiply(product, of_product, weight[t].value, item);
        error = kBegins && t == 0 ? of_product : error + of_product;
      }
      if constexpr (kWeights == ExactWeights::kOwnRests) {
        error = error - weight[t].rest * item;
      }
      if (kBegins && t == 0) {
        sum = product;
        continue;
      }
      Computed next;
      Computed of_addition;
      lanes.add(next, of_addition, sum, product);
      const bool is_first_error = kBegins && t == 1 && kWeights == ExactWeights::kEqual;
      error = is_first_error ? of_addition : error + of_addition;
      sum = next;
    }
    if constexpr (!kEnds) {
      std::memcpy(sums + i, &sum, sizeof sum);
      std::memcpy(errors + i, &error, sizeof error);
      return;
    }
    if constexpr (kWeights == ExactWeights::kEqual) {
      Computed product;
      Computed of_product;
      lanes.multiply(product, of_product, last.value, sum);
      error = of_product + (last.value * error - last.rest * sum);
      sum = product;
    } else {
      error = error + excess * sum;
    }
    Computed result = sum - error;
    if (!lanes.are_ordinary(result)) {
      // Sums of zeros or of a NaN are right, and too frequent to be mended one by one.
      Computed magnitude{};
      for (const Term& term : all->terms) {
        Computed item;
        lanes.load(item, term.data, offset + i);
        magnitude = magnitude + (item < 0.0 ? -item : item);
      }
      const Computed checked = magnitude > 0.0 ? result : Computed{} + 1.0;
      if (!lanes.are_ordinary(checked)) {
        std::array<double, lanes.kItems> results;
        std::memcpy(results.data(), &result, sizeof result);
        mend(results.data(), lanes.kItems, *all, offset + i);
        std::memcpy(&result, results.data(), sizeof result);
      }
    }
    lanes.store(out, i, result);
  });
}

template <ExactWeights kWeights>
void add_all(CpuLevel level, std::span<std::byte> dst, const AllTerms& all) {
  ExactBlock block;
  const auto add = [&]<std::size_t kTerms, bool kBegins, bool kEnds>(
                       std::span<const Term> group, std::size_t offset,
                       std::size_t count) {
    add_group<kWeights, kTerms, kBegins, kEnds>(level, dst.data(), block, group.data(),
                                                all, offset, count);
  };
  add_in_groups(all.terms, dst.size() / sizeof(double), add);
}

}  // namespace

void combine_float64(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, double post_scale) noexcept {
  const ExactFactors factors(terms, post_scale);
  if (terms.size() == 2 && factors.is_half()) {
    return average_two<double>(level, dst, terms);
  }
  const AllTerms all{terms, factors};
  if (factors.is_uniform()) return add_all<ExactWeights::kEqual>(level, dst, all);
  if (factors.has_rests()) return add_all<ExactWeights::kOwnRests>(level, dst, all);
  add_all<ExactWeights::kOwn>(level, dst, all);
}

}  // namespace bluecomm
