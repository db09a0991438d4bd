#include "kernels/add_widened.h"
#include "kernels/average_two.h"
#include "kernels/combine_widened.h"

namespace bluecomm {

void combine_float32(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept {
  // Sums of float32 do not overflow in float64, so they need no shares.
  const double last = factors.last.value * factors.share.value_or(1.0);
  if (factors.share) {
    if (terms.size() == 2 && last == 0.5) {
      return average_two<float>(level, dst, terms);
    }
    using Sum = WidenedSum<false, LastFactor::kOnePart>;
    return add_terms<Float32Item, Sum>(level, dst, terms, factors, last);
  }
  if (last == 1.0) {
    using Sum = WidenedSum<true, LastFactor::kNone>;
    return add_terms<Float32Item, Sum>(level, dst, terms, factors, last);
  }
  using Sum = WidenedSum<true, LastFactor::kOnePart>;
  add_terms<Float32Item, Sum>(level, dst, terms, factors, last);
}

}  // namespace bluecomm
