// Checks of requests. Each throws std::invalid_argument whose text names the operation,
// this rank, what is expected and what was given.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"

namespace bluecomm {

[[noreturn]] void refuse(const Request& request, const std::string& why);

// The group is complete and this rank is in it.
void check_group(const Request& request);

// `input` is as long as shape and dtype say.
void check_input(const Request& request);

// `output` is as long as `own` (the input, or a part of it), and is that very memory or
// apart from the input.
void check_output(const Request& request, std::span<const std::byte> own);

// The rows can be stacked (at least one dimension), and there is memory for the result.
void check_stackable(const Request& request);

// Operator and scales suit the dtype.
void check_reduction(const Request& request);

// Each of `neighbors` is in [0, count), is not `self`, and stands there once. `role` is
// the word for messages, such as "source"; `unit` is "member" or "machine".
void check_neighbors(const Request& request, const std::vector<Weight>& neighbors,
                     const std::string& role, const std::string& unit, int count,
                     int self);

// Weights other than 1 belong to a floating dtype.
void check_weights(const Request& request);

// Bytes of one row: one entry of the first dimension.
std::size_t row_nbytes(const Request& request);

}  // namespace bluecomm
