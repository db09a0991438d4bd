#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "engine/call.h"
#include "engine/peers.h"

// Conversions from Python values to the engine's types.

namespace bluecomm::bindings {

// Parse the name of a kind, reduction, dtype or algorithm ("auto" is none). Throw
// std::invalid_argument, whose text lists the known names.
Kind parse_kind(std::string_view word);
ReduceOp parse_op(std::string_view word);
DType parse_dtype(std::string_view word);
std::optional<Algorithm> parse_algorithm(std::string_view word);
// Returns the word that parse_op() reads as `op`.
std::string_view op_word(ReduceOp op);

// Return a time and a duration of `seconds`, at most a hundred years. Throw
// std::invalid_argument for NaN.
std::chrono::steady_clock::time_point deadline_after(double seconds);
std::chrono::steady_clock::duration to_duration(double seconds);

inline std::span<std::byte> memory_at(std::uintptr_t address, std::size_t nbytes) {
  return {reinterpret_cast<std::byte*>(address), nbytes};
}

std::vector<Peer> parse_peers(const pybind11::sequence& peers);

}  // namespace bluecomm::bindings
