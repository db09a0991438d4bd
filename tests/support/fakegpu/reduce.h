// Arithmetic of reductions for each of NCCL's types.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "nccl_abi.h"

namespace fakegpu {

// Bytes of an item; 0 for an unknown type.
std::size_t size_of(ncclDataType_t type);

// Writes the reduction of `inputs`, in their order, to `out`, which may be one of them.
// Floats of less than 32 bits are added in float and rounded once. `scale` multiplies
// each input before the sum (PreMulSum).
void reduce(ncclDataType_t type, ncclRedOp_t reduction, std::optional<double> scale,
            const std::vector<const std::byte*>& inputs, std::size_t count,
            std::byte* out);

// Reads one item as a number.
double item_as_double(ncclDataType_t type, const void* item);

}  // namespace fakegpu
