#include "nccl_net/interface_filter.h"

#include <algorithm>

namespace bluecomm::nccl_net {
namespace {

constexpr std::size_t kMaxNames = 16;  // NCCL's limit

}  // namespace

InterfaceFilter::InterfaceFilter(std::string_view text) {
  excludes_ = text.starts_with('^');
  if (excludes_) text.remove_prefix(1);
  exact_ = text.starts_with('=');
  if (exact_) text.remove_prefix(1);
  while (!text.empty() && names_.size() < kMaxNames) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, comma);
    const std::string_view name = entry.substr(0, entry.find(':'));
    if (!name.empty()) names_.emplace_back(name);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
}

bool InterfaceFilter::admits(std::string_view name) const {
  const auto matches = [&](const std::string& wanted) {
    return exact_ ? name == wanted : name.starts_with(wanted);
  };
  // An empty list matches all names.
  const bool listed =
      names_.empty() || std::any_of(names_.begin(), names_.end(), matches);
  return listed != excludes_;
}

}  // namespace bluecomm::nccl_net
