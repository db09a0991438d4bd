#pragma once

#include <cstddef>
#include <map>

namespace bluecomm::stream {

// The ranges of a payload that are complete, added in any order.
class Prefix {
 public:
  // Adds [begin, end). Returns false if it overlaps a range that was added before.
  bool add(std::size_t begin, std::size_t end) {
    const auto next = later_.lower_bound(begin);
    if (begin < length_ || (next != later_.end() && next->first < end)) return false;
    if (next != later_.begin() && std::prev(next)->second > begin) return false;
    later_.emplace_hint(next, begin, end);
    while (!later_.empty() && later_.begin()->first == length_) {
      length_ = later_.begin()->second;
      later_.erase(later_.begin());
    }
    return true;
  }

  // The length of the prefix that is complete.
  std::size_t length() const { return length_; }

 private:
  std::size_t length_ = 0;
  std::map<std::size_t, std::size_t> later_;  // ranges after a gap: begin to end
};

}  // namespace bluecomm::stream
