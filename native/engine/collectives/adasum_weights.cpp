#include "engine/collectives/adasum_weights.h"

#include <bit>
#include <cmath>

#include "kernels/products.h"

namespace bluecomm {
namespace {

// A sum smaller than this share of its terms' magnitude is considered to be zero,
// because it consists of rounding errors.
constexpr double kRounding = 1e-13;

struct Tensors {
  std::size_t begin;
  std::size_t end;
};

// The weights of the divided tensors, as long doubles, whose range includes the squares
// of all doubles.
class AdasumWeights {
 public:
  explicit AdasumWeights(const InnerProducts& inner) : products_(inner.products) {
    for (const int exponent : inner.exponents) {
      values_.push_back(std::ldexp(1.0L, exponent));
    }
  }

  void reduce(Tensors all) {
    const std::size_t count = all.end - all.begin;
    if (count < 2) return;
    const std::size_t middle = all.begin + std::bit_floor(count - 1);
    const Tensors first{all.begin, middle};
    const Tensors last{middle, all.end};
    reduce(first);
    reduce(last);
    const long double shared = product(first, last).value;
    const long double of_first = factor(shared, product(first, first));
    const long double of_last = factor(shared, product(last, last));
    for (std::size_t i = first.begin; i < first.end; ++i) values_[i] *= of_first;
    for (std::size_t i = last.begin; i < last.end; ++i) values_[i] *= of_last;
  }

  long double value(std::size_t i) const { return values_[i]; }

 private:
  struct Product {
    long double value = 0.0L;
    long double magnitude = 0.0L;  // sum of the absolute values of its terms
  };

  // Returns the inner product of two sums with the current weights.
  Product product(Tensors a, Tensors b) const {
    Product result;
    for (std::size_t i = a.begin; i < a.end; ++i) {
      for (std::size_t j = b.begin; j < b.end; ++j) {
        const std::size_t index = i < j ? pair_index(j, i) : pair_index(i, j);
        const long double term = values_[i] * values_[j] * products_[index];
        result.value += term;
        result.magnitude += std::abs(term);
      }
    }
    return result;
  }

  static long double factor(long double shared, const Product& square) {
    if (square.value <= kRounding * square.magnitude) return 1.0L;
    return 1.0L - shared / (2.0L * square.value);
  }

  const std::span<const double> products_;
  std::vector<long double> values_;
};

}  // namespace

std::vector<ScaledNumber> adasum_weights(const InnerProducts& inner) {
  const std::size_t n = inner.exponents.size();
  AdasumWeights weights(inner);
  weights.reduce({0, n});
  std::vector<ScaledNumber> result;
  for (std::size_t i = 0; i < n; ++i) {
    result.push_back({weights.value(i), -inner.exponents[i]});
  }
  return result;
}

}  // namespace bluecomm
