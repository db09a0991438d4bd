// Sums and other reductions of tensors, element by element, in one pass over memory.
//
// Every function gives the same bits on every rank. Terms are taken in the order given
// (callers pass them in ascending order of rank, including their own), no product is
// fused with an addition, and the result depends neither on how the caller cuts a
// tensor into chunks, nor on alignment, nor on the vector instructions of the CPU.
//
// `dst` may be exactly one of the terms; it must not overlap a term in any other way.
// Memory may have any alignment. Every term has dst.size() bytes, a multiple of the
// item size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/cpu.h"

namespace bluecomm {

// The values are sent to peers: append, never renumber.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAverage = 1,  // a sum; the caller passes 1 / world size as post_scale
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kAdasum = 5,  // a sum; the caller weighs the terms
  kBitAnd = 6,  // these three are for integers and bools
  kBitOr = 7,
  kBitXor = 8,
};

// One input. The weight must be 1 unless the dtype is a floating type.
struct Term {
  const std::byte* data;
  double weight = 1.0;
};

// dst[k] = post_scale * sum over t of weight_t * term_t[k].
//
// float16 and bfloat16 are computed in float32, float32 in float64, and float64 with
// twice its precision; the result is rounded once. The double nearest to 1 / m, as a
// factor, divides by m exactly. Weights that add up to 1 except for rounding count as
// adding up to 1 exactly. So items on which all terms of an average agree keep their
// bits. A plain sum of float32 or float64, without factors, and the average of two
// float32 are computed in their own type.
//
// Integers wrap around. The sum of bools is `or`. Complex numbers are added by their
// parts. There must be at least one term, and `dtype` must have arithmetic.
void combine_weighted(std::span<std::byte> dst, std::span<const Term> terms,
                      double post_scale, DType dtype,
                      CpuLevel level = cpu_level()) noexcept;

// dst[k] = post_scale * op over t of weight_t * term_t[k], like combine_weighted().
//
// NaN wins over every number in min and max, which complex numbers do not have, nor the
// product. The product and the minimum of bools are
// `and`, sum and maximum are `or`.
void combine_reduce(std::span<std::byte> dst, std::span<const Term> terms, ReduceOp op,
                    double post_scale, DType dtype,
                    CpuLevel level = cpu_level()) noexcept;

// dst[k] = scale * src[k]; a plain copy if `scale` is 1. For integers and bools `scale`
// must be 1 or 0.
void copy_scaled(std::span<std::byte> dst, std::span<const std::byte> src, double scale,
                 DType dtype) noexcept;

}  // namespace bluecomm
