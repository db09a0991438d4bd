#include "bindings/arguments.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kOps = {
    std::pair{"sum", ReduceOp::kSum},         std::pair{"average", ReduceOp::kAverage},
    std::pair{"min", ReduceOp::kMin},         std::pair{"max", ReduceOp::kMax},
    std::pair{"product", ReduceOp::kProduct}, std::pair{"adasum", ReduceOp::kAdasum},
    std::pair{"bit_and", ReduceOp::kBitAnd},  std::pair{"bit_or", ReduceOp::kBitOr},
    std::pair{"bit_xor", ReduceOp::kBitXor}};

constexpr std::array kAlgorithms = {
    std::pair{"auto", std::optional<Algorithm>()},
    std::pair{"direct", std::optional(Algorithm::kDirect)},
    std::pair{"ring", std::optional(Algorithm::kRing)},
    std::pair{"hierarchical", std::optional(Algorithm::kHierarchical)}};

[[noreturn]] void refuse_word(std::string_view what, std::string_view word,
                              std::string_view known) {
  std::string text(what);
  text.append(" must be one of").append(known);
  throw std::invalid_argument(text.append("; got '").append(word).append("'"));
}

}  // namespace

Kind parse_kind(std::string_view word) {
  if (const auto kind = kind_from_name(word)) return *kind;
  std::string known;
  for (const KindInfo& kind : all_kinds()) known.append(" ").append(kind.name);
  refuse_word("kind", word, known);
}

ReduceOp parse_op(std::string_view word) {
  std::string known;
  for (const auto& [name, op] : kOps) {
    if (name == word) return op;
    known.append(" ").append(name);
  }
  refuse_word("op", word, known);
}

std::string_view op_word(ReduceOp op) {
  for (const auto& [name, known] : kOps) {
    if (known == op) return name;
  }
  return "unknown";
}

std::optional<Algorithm> parse_algorithm(std::string_view word) {
  std::string known;
  for (const auto& [name, algorithm] : kAlgorithms) {
    if (name == word) return algorithm;
    known.append(" ").append(name);
  }
  refuse_word("algorithm", word, known);
}

DType parse_dtype(std::string_view word) {
  if (const auto dtype = dtype_from_name(word)) return *dtype;
  std::string known;
  for (int value = 0; value < kDTypeCount; ++value) {
    known.append(" ").append(dtype_name(static_cast<DType>(value)));
  }
  refuse_word("dtype", word, known);
}

Clock::duration to_duration(double seconds) {
  if (std::isnan(seconds)) throw std::invalid_argument("a time must not be NaN");
  // A hundred years stand for infinity and cannot overflow.
  constexpr double kForever = 3e9;
  const double bounded = std::clamp(seconds, 0.0, kForever);
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(bounded));
}

Clock::time_point deadline_after(double seconds) {
  return Clock::now() + to_duration(seconds);
}

std::vector<Peer> parse_peers(const py::sequence& peers) {
  std::vector<Peer> parsed;
  for (const py::handle one : peers) {
    Peer peer;
    peer.rank = one["rank"].cast<int>();
    peer.host = one["host"].cast<std::string>();
    peer.machine = one["machine"].cast<std::string>();
    peer.pid = one["pid"].cast<int>();
    peer.offers = one["offers"].cast<std::map<std::string, std::string>>();
    parsed.push_back(std::move(peer));
  }
  return parsed;
}

}  // namespace bluecomm::bindings
