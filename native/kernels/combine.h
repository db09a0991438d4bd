// Sums and other reductions of tensors, element by element, in one pass over memory.
//
// All functions: same bits on every rank. Terms are taken in the order given (callers
// give ascending rank, the own value in its place), each product and each sum is
// rounded on its own (no fused multiply-add), and the result does not depend on how the
// caller cuts a tensor into chunks, on alignment, or on the vector instructions of the
// CPU.
//
// All functions: `dst` may be exactly one of the terms; it may not overlap one in any
// other way. Any alignment. Every term has dst.size() bytes, a multiple of the item
// size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "kernels/cpu.h"

namespace bluecomm {

// The values go over the wire: append, never renumber.
enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAverage = 1,  // a sum; the caller passes 1 / world size as post_scale
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kAdasum = 5,  // a sum; the caller weighs the terms
};

// One input. Weights are for floating types; elsewhere they must be 1.
struct Term {
  const std::byte* data;
  double weight = 1.0;
};

// dst[k] = post_scale * sum over t of weight_t * term_t[k].
//
// float32 and float64 are computed in their own type, with the weights rounded to it.
// float16 and bfloat16 are computed in float32 and rounded once, at the end. Integers
// wrap around. The sum of bools is `or`. At least one term.
void combine_weighted(std::span<std::byte> dst, std::span<const Term> terms,
                      double post_scale, DType dtype,
                      CpuLevel level = cpu_level()) noexcept;

// dst[k] = post_scale * op over t of weight_t * term_t[k], as combine_weighted().
//
// NaN wins over every number in min and max. The product and the minimum of bools are
// `and`, sum and maximum are `or`.
void combine_reduce(std::span<std::byte> dst, std::span<const Term> terms, ReduceOp op,
                    double post_scale, DType dtype,
                    CpuLevel level = cpu_level()) noexcept;

// dst[k] = scale * src[k]; a plain copy where scale is 1. For integers and bools scale
// is 1, or 0, which leaves zeros.
void copy_scaled(std::span<std::byte> dst, std::span<const std::byte> src, double scale,
                 DType dtype) noexcept;

}  // namespace bluecomm
