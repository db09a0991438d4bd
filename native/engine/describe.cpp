// The texts of failures. The dispatcher calls these functions under the progress lock;
// all are pure.
#include "engine/describe.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

namespace bluecomm {
namespace {

std::string_view op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAverage:
      return "average";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kAdasum:
      return "adasum";
    case ReduceOp::kBitAnd:
      return "bit_and";
    case ReduceOp::kBitOr:
      return "bit_or";
    case ReduceOp::kBitXor:
      return "bit_xor";
  }
  return "unknown";
}

std::string describe_shape(const Envelope& call) {
  std::string text = "[";
  const std::size_t shown = std::min<std::size_t>(call.ndim, Envelope::kMaxDims);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(call.dims[i]);
  }
  if (shown < call.ndim) text += ", ...";
  return text + "]";
}

std::string describe_factor(std::string_view name, double factor) {
  if (factor == 1.0) return "";
  std::array<char, 32> value{};
  std::snprintf(value.data(), value.size(), " %g", factor);
  return std::string(", ").append(name) + value.data();
}

// Returns a sentence about the change that the callers must make, for the first
// property in which their calls differ.
std::string_view remedy(const Envelope& a, const Envelope& b) {
  if (a.kind != b.kind) return "All ranks must call the same operation under one name.";
  // A call that precedes a ticket has a type and a shape of its own.
  if ((a.algorithm == Algorithm::kTicket) != (b.algorithm == Algorithm::kTicket)) {
    return "One rank's tensor goes through NCCL, and the other's through the host. All "
           "ranks must pass tensors on a GPU, or set BLUECOMM_DEVICE_TRANSPORT=staged.";
  }
  if (a.dtype != b.dtype || a.shape_hash != b.shape_hash) {
    return kind_info(a.kind).shape == ShapeRule::kAllButFirst
               ? "All ranks must pass the same dtype and, except for the first "
                 "dimension, the same shape."
               : "All ranks must pass the same shape and dtype.";
  }
  if (a.op != b.op) return "All ranks must pass the same reduction.";
  if (a.root != b.root) return "All ranks must pass the same root rank.";
  if (a.local_only != b.local_only) {
    return "All ranks must reduce in the same scope: inside the machine, or over all "
           "machines.";
  }
  if (a.prescale != b.prescale || a.postscale != b.postscale) {
    return "All ranks must pass the same scale factors.";
  }
  if (a.group_hash != b.group_hash) {
    return "The process sets of the callers have different members.";
  }
  return "The ranks chose different algorithms of the engine. All ranks must run the "
         "same version of bluecomm with the same settings, and pass the same "
         "algorithm.";
}

}  // namespace

std::string describe_operation(const Envelope& call, std::string_view name) {
  std::string text(kind_name(call.kind));
  if (!name.empty()) text.append(" '").append(name).append("'");
  return text;
}

std::string describe_call(const Envelope& call) {
  const KindInfo& kind = kind_info(call.kind);
  std::string text(kind.name);
  if (kind.shape == ShapeRule::kNoTensor) return text;
  text.append(" ").append(dtype_name(call.dtype)).append(" ");
  text += describe_shape(call);
  if (kind.is_reduction) {
    text.append(" ").append(op_name(call.op));
    text += describe_factor("prescale", call.prescale);
    text += describe_factor("postscale", call.postscale);
  }
  if (kind.has_root) {
    const bool receives = call.kind == Kind::kReduce || call.kind == Kind::kGather;
    text += receives ? " to root " : " from root ";
    text += std::to_string(call.root);
  }
  if (call.local_only != 0) text += " inside the machine";
  return text;
}

std::string describe_mismatch(std::string_view name, const MismatchedCall& a,
                              const MismatchedCall& b) {
  const MismatchedCall& low = a.rank < b.rank ? a : b;
  const MismatchedCall& high = a.rank < b.rank ? b : a;
  std::string text = describe_operation(low.call, name);
  text.append(": ").append(low.caller).append(" called ");
  text.append(describe_call(low.call)).append(", ").append(high.caller);
  text.append(" called ").append(describe_call(high.call)).append(". ");
  return text.append(remedy(low.call, high.call));
}

std::string describe_ranks(std::span<const int> ranks) {
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  constexpr std::size_t kShown = 16;
  std::string text = sorted.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(sorted.size(), kShown); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(sorted[i]);
  }
  if (sorted.size() > kShown) {
    text += " and " + std::to_string(sorted.size() - kShown) + " more";
  }
  return text;
}

std::string describe_part(std::size_t part, std::size_t whole) {
  struct Unit {
    const char* name;
    double nbytes;
  };
  constexpr std::array<Unit, 3> kUnits{
      {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}};
  for (const Unit& unit : kUnits) {
    if (static_cast<double>(whole) < unit.nbytes) continue;
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%.1f of %.1f %s",
                  static_cast<double>(part) / unit.nbytes,
                  static_cast<double>(whole) / unit.nbytes, unit.name);
    return text.data();
  }
  return std::to_string(part) + " of " + std::to_string(whole) + " bytes";
}

std::string describe_missing(std::span<const Missing> missing,
                             std::span<const int> not_taken,
                             std::chrono::duration<double> waited) {
  std::array<char, 32> within{};
  std::snprintf(within.data(), within.size(), " within %.1f s", waited.count());
  std::string text;
  if (!missing.empty()) {
    std::vector<int> peers;
    std::string parts;
    for (const Missing& one : missing) {
      peers.push_back(one.peer);
      if (!one.announced || one.expected == 0) continue;
      parts += parts.empty() ? " (received " : ", ";
      parts += describe_part(one.received, one.expected);
      parts += " from rank " + std::to_string(one.peer);
    }
    text = "no data from " + describe_ranks(peers) + within.data() + parts +
           (parts.empty() ? "" : ")");
  }
  if (!not_taken.empty()) {
    if (!text.empty()) text += "; ";
    text += "data not taken by " + describe_ranks(not_taken) +
            (missing.empty() ? within.data() : "");
  }
  return text;
}

}  // namespace bluecomm
