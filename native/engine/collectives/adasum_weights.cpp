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

class AdasumWeights {
 public:
  AdasumWeights(std::span<const double> products, std::size_t n)
      : products_(products), values_(n, 1.0) {}

  void reduce(Tensors all) {
    const std::size_t count = all.end - all.begin;
    if (count < 2) return;
    const std::size_t middle = all.begin + std::bit_floor(count - 1);
    const Tensors first{all.begin, middle};
    const Tensors last{middle, all.end};
    reduce(first);
    reduce(last);
    const double shared = product(first, last).value;
    const double of_first = factor(shared, product(first, first));
    const double of_last = factor(shared, product(last, last));
    for (std::size_t i = first.begin; i < first.end; ++i) values_[i] *= of_first;
    for (std::size_t i = last.begin; i < last.end; ++i) values_[i] *= of_last;
  }

  std::vector<double> take() { return std::move(values_); }

 private:
  struct Product {
    double value = 0.0;
    double magnitude = 0.0;  // sum of the absolute values of its terms
  };

  // Returns the inner product of two sums with the current weights.
  Product product(Tensors a, Tensors b) const {
    Product result;
    for (std::size_t i = a.begin; i < a.end; ++i) {
      for (std::size_t j = b.begin; j < b.end; ++j) {
        const std::size_t index = i < j ? pair_index(j, i) : pair_index(i, j);
        const double term = values_[i] * values_[j] * products_[index];
        result.value += term;
        result.magnitude += std::abs(term);
      }
    }
    return result;
  }

  static double factor(double shared, const Product& square) {
    if (square.value <= kRounding * square.magnitude) return 1.0;
    return 1.0 - shared / (2.0 * square.value);
  }

  const std::span<const double> products_;
  std::vector<double> values_;
};

}  // namespace

std::vector<double> adasum_weights(std::span<const double> products, std::size_t n) {
  AdasumWeights weights(products, n);
  weights.reduce({0, n});
  return weights.take();
}

}  // namespace bluecomm
