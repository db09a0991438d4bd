// Sums products of float64 items and weights with compensation for rounding errors.
//
// An item and a weight are both split into 26 leading bits and the rest, so that the
// product of the leading bits is exact. These products are added by Knuth's two-sum,
// which also returns the rounding error of each addition. The errors and the small
// products are added up separately, where their own roundings do not matter
// (Ogita, Rump and Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26(6),
// 2005).
#include "kernels/combine_float64.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "kernels/at_level.h"
#include "kernels/factors.h"
#include "kernels/leading.h"
#include "kernels/unaligned.h"

namespace bluecomm {
namespace {

// Returns a + b exactly.
BLUECOMM_INLINE inline TwoPart two_sum(double a, double b) {
  const double sum = a + b;
  const double of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

// A factor whose head has 26 bits, so that products with such numbers are exact.
struct SplitFactor {
  double head = 0.0;
  double tail = 0.0;
};

SplitFactor split(const TwoPart& factor) {
  const double head = leading_bits(factor.value);
  return {head, (factor.value - head) + factor.rest};
}

// The sum of one item over several terms, before it is rounded.
struct ExactSum {
  double value;
  double error;
  std::uint64_t differs;  // nonzero if the item differs between terms
};

// Returns value + error, rounded. `error` is NaN if the value is infinite; an error of
// zero must not change the sign of a zero.
BLUECOMM_INLINE inline double rounded(double value, double error) {
  const double magnitude = error < 0.0 ? -error : error;
  return magnitude > 0.0 ? value + error : value;
}

// Terms with weights of their own.
struct Weighted {
  using Applied = SplitFactor;
  BLUECOMM_INLINE static ExactSum begin(double item, const Applied& weight) {
    const double head = leading_bits(item);
    return {weight.head * head, weight.head * (item - head) + weight.tail * item, 0};
  }
  BLUECOMM_INLINE static void add(ExactSum& sum, double item, const Applied& weight) {
    const double head = leading_bits(item);
    const TwoPart next = two_sum(sum.value, weight.head * head);
    sum.value = next.value;
    sum.error += next.rest + (weight.head * (item - head) + weight.tail * item);
  }
  BLUECOMM_INLINE static double finish(const ExactSum& sum, const SplitFactor&) {
    return rounded(sum.value, sum.error);
  }
};

// Terms that are added in equal shares, before the sum is multiplied.
struct Uniform {
  using Applied = double;  // a power of two, so that the product is exact
  BLUECOMM_INLINE static ExactSum begin(double item, Applied share) {
    return {share * item, -0.0, 0};
  }
  BLUECOMM_INLINE static void add(ExactSum& sum, double item, Applied share) {
    const TwoPart next = two_sum(sum.value, share * item);
    sum.value = next.value;
    sum.error += next.rest;
  }
  BLUECOMM_INLINE static double finish(const ExactSum& sum, const SplitFactor& last) {
    const double head = leading_bits(sum.value);
    const double small = last.head * (sum.value - head) + last.tail * sum.value;
    return rounded(last.head * head, small + last.head * sum.error);
  }
};

// Two terms with shares of 1/2: no product is rounded, and the sum is rounded once.
struct Halves {
  using Applied = double;
  BLUECOMM_INLINE static ExactSum begin(double item, Applied share) {
    return {share * item, -0.0, 0};
  }
  BLUECOMM_INLINE static void add(ExactSum& sum, double item, Applied share) {
    sum.value += share * item;
  }
  BLUECOMM_INLINE static double finish(const ExactSum& sum, const SplitFactor& last) {
    return last.head * sum.value;
  }
};

// The weights and the last factor of a sum.
class ExactFactors {
 public:
  ExactFactors(std::span<const Term> terms, double post_scale)
      : factors_(factors_of(terms, post_scale)) {
    if (is_uniform()) {
      const auto count = static_cast<double>(terms.size());
      const double total = factors_.last.value * *factors_.share * count;
      is_average_ = std::abs(total - 1.0) <= 0x1p-52;
      return;
    }
    TwoPart total;
    double magnitude = 0.0;
    for (const Term& term : terms) {
      const TwoPart weight = exact_factor(term.weight * factors_.last.value);
      const TwoPart next = two_sum(total.value, weight.value);
      total = {next.value, total.rest + (next.rest + weight.rest)};
      magnitude += std::abs(weight.value);
    }
    const double excess = (total.value - 1.0) + total.rest;
    const auto count = static_cast<double>(terms.size());
    is_average_ = std::abs(excess) <= count * 0x1p-52 * magnitude;
    if (is_average_) excess_ = excess;
  }

  bool is_uniform() const { return factors_.share.has_value(); }
  bool is_half() const { return is_uniform() && factors_.last.value == 1.0; }
  // Whether the weights add up to 1, up to rounding.
  bool is_average() const { return is_average_; }

  void get_weight(const Term&, double& share) const { share = *factors_.share; }
  void get_weight(const Term& term, SplitFactor& weight) const {
    const TwoPart exact = exact_factor(term.weight * factors_.last.value);
    // Divides by 1 + excess, which differs from 1 by a few roundings only.
    weight = split({exact.value, exact.rest - exact.value * excess_});
  }
  SplitFactor last() const { return split(factors_.last); }

 private:
  const Factors factors_;
  double excess_ = 0.0;
  bool is_average_;
};

constexpr std::size_t kFused = 4;    // terms that are read side by side
constexpr std::size_t kBlock = 512;  // items

// The sums of a block of items, to which groups of terms are added one by one.
struct ExactBlock {
  std::array<double, kBlock> value;
  std::array<double, kBlock> error;
  std::array<std::uint64_t, kBlock> differs;
};

// Adds `count` items of kTerms terms: begins the sums or continues those in `block`,
// and stores them there or writes the results to `dst`. `first_term` is the first term
// of the whole sum.
template <typename Policy, std::size_t kTerms, bool kBegins, bool kEnds>
void add_group(CpuLevel level, std::byte* dst, ExactBlock* block, const Term* terms,
               const std::byte* first_term, const ExactFactors& factors,
               std::size_t offset, std::size_t count) {
  std::array<const Unaligned<double>*, kTerms> in;
  std::array<typename Policy::Applied, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = unaligned<double>(terms[t].data) + offset;
    factors.get_weight(terms[t], weight[t]);
  }
  const SplitFactor last = factors.last();
  const Unaligned<double>* const first = unaligned<double>(first_term) + offset;
  // Only averages keep items on which all terms agree.
  const std::uint64_t differs = factors.is_average() ? 0 : 1;
  double* const values = kBegins && kEnds ? nullptr : block->value.data();
  double* const errors = kBegins && kEnds ? nullptr : block->error.data();
  std::uint64_t* const differing = kBegins && kEnds ? nullptr : block->differs.data();
  Unaligned<double>* const out = unaligned<double>(dst) + offset;
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const double kept = first[i].value;
      ExactSum sum;
      if constexpr (kBegins) {  // terms[0] is the first term
        sum = Policy::begin(kept, weight[0]);
        sum.differs = differs;
      } else {
        sum = {values[i], errors[i], differing[i]};
      }
      for (std::size_t t = kBegins ? 1 : 0; t < kTerms; ++t) {
        const double item = in[t][i].value;
        Policy::add(sum, item, weight[t]);
        sum.differs |=
            std::bit_cast<std::uint64_t>(item) ^ std::bit_cast<std::uint64_t>(kept);
      }
      if constexpr (kEnds) {
        out[i].value = sum.differs == 0 ? kept : Policy::finish(sum, last);
      } else {
        values[i] = sum.value;
        errors[i] = sum.error;
        differing[i] = sum.differs;
      }
    }
  });
}

// Adds the last 1 to kFused terms.
template <typename Policy, bool kBegins>
void add_last(CpuLevel level, std::byte* dst, ExactBlock* block,
              std::span<const Term> terms, const std::byte* first,
              const ExactFactors& factors, std::size_t offset, std::size_t count) {
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    add_group<Policy, kIndex + 1, kBegins, true>(level, dst, block, terms.data(), first,
                                                 factors, offset, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kFused>());
}

template <typename Policy>
void add_all(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
             const ExactFactors& factors) {
  const std::size_t count = dst.size() / sizeof(double);
  const std::byte* const first = terms[0].data;
  if (terms.size() <= kFused) {
    return add_last<Policy, true>(level, dst.data(), nullptr, terms, first, factors, 0,
                                  count);
  }
  ExactBlock block;
  for (std::size_t offset = 0; offset < count; offset += kBlock) {
    const std::size_t length = std::min(kBlock, count - offset);
    add_group<Policy, kFused, true, false>(level, nullptr, &block, terms.data(), first,
                                           factors, offset, length);
    std::span<const Term> rest = terms.subspan(kFused);
    for (; rest.size() > kFused; rest = rest.subspan(kFused)) {
      add_group<Policy, kFused, false, false>(level, nullptr, &block, rest.data(),
                                              first, factors, offset, length);
    }
    add_last<Policy, false>(level, dst.data(), &block, rest, first, factors, offset,
                            length);
  }
}

}  // namespace

void combine_float64(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, double post_scale) noexcept {
  const ExactFactors factors(terms, post_scale);
  if (terms.size() == 2 && factors.is_half()) {
    return add_group<Halves, 2, true, true>(level, dst.data(), nullptr, terms.data(),
                                            terms[0].data, factors, 0,
                                            dst.size() / sizeof(double));
  }
  if (factors.is_uniform()) return add_all<Uniform>(level, dst, terms, factors);
  add_all<Weighted>(level, dst, terms, factors);
}

}  // namespace bluecomm
