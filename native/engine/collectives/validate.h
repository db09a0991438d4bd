// Checks of calls. Each throws std::invalid_argument with a text that names the
// operation, this rank, the expected value and the given one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/call.h"

namespace bluecomm {

// Throws std::invalid_argument: the operation and this rank, then `why`.
[[noreturn]] void reject(const Call& call, const std::string& why);

// The group is complete and contains this rank.
void check_group(const Call& call);

// `input` has the length that shape and dtype imply.
void check_input(const Call& call);

// `output` is as long as `own` (the input or a part of it), and either is that very
// memory or does not overlap the input.
void check_output(const Call& call, std::span<const std::byte> own);

// The input has rows to stack (at least one dimension), and there is memory for those
// of `sources` sources: given by the caller, or to be allocated.
void check_stackable(const Call& call, std::size_t sources);

bool shares_memory(std::span<const std::byte> a, std::span<const std::byte> b);

// The operator and the scales suit the dtype.
void check_reduction(const Call& call);

// `root` is a member.
void check_root(const Call& call);

// There is one split for each member, and they add up to the rows.
void check_splits(const Call& call);

// Each of `neighbors` is in [0, count), differs from `self`, and occurs once. `role` is
// the word for error texts, such as "source"; `unit` is "member" or "machine".
void check_neighbors(const Call& call, const std::vector<Weight>& neighbors,
                     const std::string& role, const std::string& unit, int count,
                     int self);

// All weights are 1 unless the dtype is a floating type.
void check_weights(const Call& call);

// Returns the bytes of one row, which is one entry of the first dimension.
std::size_t row_nbytes(const Call& call);

}  // namespace bluecomm
