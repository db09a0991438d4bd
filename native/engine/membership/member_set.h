#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bluecomm {

// A set of members of an epoch, by their ranks in it. Sets are combined with sets of
// the same epoch only. Up to 64 members need no allocation.
class MemberSet {
 public:
  MemberSet() = default;
  // Makes an empty set for an epoch of `size` members.
  explicit MemberSet(int size) : size_(size), rest_(words_of(size) - 1) {}

  static MemberSet all(int size) {
    MemberSet set(size);
    for (int rank = 0; rank < size; ++rank) set.insert(rank);
    return set;
  }

  // The number of members of the epoch.
  int size() const { return size_; }
  // The number of members in the set.
  int count() const {
    int count = std::popcount(first_);
    for (const std::uint64_t word : rest_) count += std::popcount(word);
    return count;
  }
  bool empty() const { return lowest() == -1; }

  bool contains(int rank) const { return (word(rank) >> (rank % 64) & 1) != 0; }
  void insert(int rank) { word(rank) |= std::uint64_t{1} << (rank % 64); }
  void erase(int rank) { word(rank) &= ~(std::uint64_t{1} << (rank % 64)); }

  // Returns the lowest rank in the set that is at least `from`, or -1.
  int lowest(int from = 0) const {
    for (int rank = from; rank < size_; ++rank) {
      if (contains(rank)) return rank;
    }
    return -1;
  }

  MemberSet& operator|=(const MemberSet& other) {
    first_ |= other.first_;
    for (std::size_t i = 0; i < rest_.size(); ++i) rest_[i] |= other.rest_[i];
    return *this;
  }
  MemberSet& operator-=(const MemberSet& other) {
    first_ &= ~other.first_;
    for (std::size_t i = 0; i < rest_.size(); ++i) rest_[i] &= ~other.rest_[i];
    return *this;
  }
  friend MemberSet operator|(MemberSet a, const MemberSet& b) { return a |= b; }
  friend MemberSet operator-(MemberSet a, const MemberSet& b) { return a -= b; }
  bool operator==(const MemberSet&) const = default;

 private:
  static std::size_t words_of(int size) {
    return size <= 64 ? 1 : (static_cast<std::size_t>(size) + 63) / 64;
  }
  std::uint64_t word(int rank) const {
    return rank < 64 ? first_ : rest_[static_cast<std::size_t>(rank) / 64 - 1];
  }
  std::uint64_t& word(int rank) {
    return rank < 64 ? first_ : rest_[static_cast<std::size_t>(rank) / 64 - 1];
  }

  int size_ = 0;
  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> rest_;
};

}  // namespace bluecomm
