// Sums products of float64 items and weights without losing what the roundings cut off.
//
// An item and a weight are both split into 26 leading bits and the rest, so that the
// product of the leading bits is exact. These products are added by Knuth's two-sum,
// which also returns the rounding error of each addition. The errors and the small
// products are added up beside the sum, where their own roundings do not matter
// (Ogita, Rump and Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26(6),
// 2005).
#include "kernels/combine_float64.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

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

struct SplitWeight {
  double head;  // the leading bits
  double tail;  // all the others
};

// The sum of an item of several terms, before it is rounded.
struct ExactSum {
  double sum = -0.0;  // unlike 0.0, adding this to -0.0 does not change it
  double error = 0.0;
  std::uint64_t differs = 0;  // nonzero if the item of some term differs from the first
};

BLUECOMM_INLINE inline void add(ExactSum& state, double item, const SplitWeight& weight,
                                double first) {
  const double head = leading_bits(item);
  const TwoPart next = two_sum(state.sum, weight.head * head);
  state.sum = next.value;
  state.error += next.rest + (weight.head * (item - head) + weight.tail * item);
  state.differs |=
      std::bit_cast<std::uint64_t>(item) ^ std::bit_cast<std::uint64_t>(first);
}

// `error` is NaN if the sum is infinite, and must not change the sign of a zero.
BLUECOMM_INLINE inline double rounded(const ExactSum& state) {
  const double magnitude = state.error < 0.0 ? -state.error : state.error;
  return magnitude > 0.0 ? state.sum + state.error : state.sum;
}

SplitWeight split(const TwoPart& weight) {
  const double head = leading_bits(weight.value);
  return {head, (weight.value - head) + weight.rest};
}

// The weights of a sum, times its post_scale.
class ExactWeights {
 public:
  ExactWeights(std::span<const Term> terms, double post_scale)
      : post_scale_(post_scale) {
    TwoPart total;
    double magnitude = 0.0;
    for (const Term& term : terms) {
      const TwoPart weight = exact_factor(term.weight * post_scale);
      const TwoPart next = two_sum(total.value, weight.value);
      total = {next.value, total.rest + (next.rest + weight.rest)};
      magnitude += std::abs(weight.value);
    }
    const double excess = (total.value - 1.0) + total.rest;
    const auto count = static_cast<double>(terms.size());
    is_average_ = std::abs(excess) <= count * 0x1p-52 * magnitude;
    if (is_average_) excess_ = excess;
  }

  // Whether they add up to 1, up to rounding.
  bool is_average() const { return is_average_; }

  SplitWeight of(const Term& term) const {
    const TwoPart weight = exact_factor(term.weight * post_scale_);
    // Divides by 1 + excess, which differs from 1 by a few roundings only.
    return split({weight.value, weight.rest - weight.value * excess_});
  }

 private:
  const double post_scale_;
  double excess_ = 0.0;
  bool is_average_;
};

constexpr std::size_t kFused = 4;    // terms that are read side by side
constexpr std::size_t kBlock = 256;  // items

// Returns ExactSum::differs before the first term. Only averages keep items that agree.
std::uint64_t differs_at_first(const ExactWeights& weights) {
  return weights.is_average() ? 0 : 1;
}

// Adds exactly kTerms terms.
template <std::size_t kTerms>
void add_few(CpuLevel level, std::byte* dst, const Term* terms,
             const ExactWeights& weights, std::size_t count) {
  std::array<const Unaligned<double>*, kTerms> in;
  std::array<SplitWeight, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = unaligned<double>(terms[t].data);
    weight[t] = weights.of(terms[t]);
  }
  const std::uint64_t differs = differs_at_first(weights);
  Unaligned<double>* const out = unaligned<double>(dst);
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const double first = in[0][i].value;
      ExactSum state{.differs = differs};
      for (std::size_t t = 0; t < kTerms; ++t) {
        add(state, in[t][i].value, weight[t], first);
      }
      out[i].value = state.differs == 0 ? first : rounded(state);
    }
  });
}

// The state of a block of items, while one term after the other is added.
struct SumBlock {
  std::array<double, kBlock> sum;
  std::array<double, kBlock> error;
  std::array<std::uint64_t, kBlock> differs;
};

void add_term(CpuLevel level, SumBlock& block, const Unaligned<double>* in,
              const SplitWeight& weight, const Unaligned<double>* first,
              std::size_t count) {
  double* const sum = block.sum.data();
  double* const error = block.error.data();
  std::uint64_t* const differs = block.differs.data();
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      ExactSum state{sum[i], error[i], differs[i]};
      add(state, in[i].value, weight, first[i].value);
      sum[i] = state.sum;
      error[i] = state.error;
      differs[i] = state.differs;
    }
  });
}

void store(CpuLevel level, Unaligned<double>* out, const SumBlock& block,
           const Unaligned<double>* first, std::size_t count) {
  const double* const sum = block.sum.data();
  const double* const error = block.error.data();
  const std::uint64_t* const differs = block.differs.data();
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const ExactSum state{sum[i], error[i], differs[i]};
      out[i].value = state.differs == 0 ? first[i].value : rounded(state);
    }
  });
}

// Adds any number of terms, block by block.
void add_many(CpuLevel level, std::byte* dst, std::span<const Term> terms,
              const ExactWeights& weights, std::size_t count) {
  std::vector<SplitWeight> weight;
  for (const Term& term : terms) weight.push_back(weights.of(term));
  const Unaligned<double>* const first = unaligned<double>(terms[0].data);
  SumBlock block;
  for (std::size_t start = 0; start < count; start += kBlock) {
    const std::size_t length = std::min(kBlock, count - start);
    block.sum.fill(ExactSum().sum);
    block.error.fill(0.0);
    block.differs.fill(differs_at_first(weights));
    for (std::size_t t = 0; t < terms.size(); ++t) {
      add_term(level, block, unaligned<double>(terms[t].data) + start, weight[t],
               first + start, length);
    }
    store(level, unaligned<double>(dst) + start, block, first + start, length);
  }
}

}  // namespace

void combine_float64(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, double post_scale) noexcept {
  const ExactWeights weights(terms, post_scale);
  const std::size_t count = dst.size() / sizeof(double);
  if (terms.size() > kFused) return add_many(level, dst.data(), terms, weights, count);
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    add_few<kIndex + 1>(level, dst.data(), terms.data(), weights, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kFused>());
}

}  // namespace bluecomm
