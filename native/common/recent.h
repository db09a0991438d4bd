#pragma once

#include <cstddef>
#include <deque>
#include <unordered_map>
#include <utility>

namespace bluecomm {

// A map that drops its oldest entries beyond `limit`, so that peers cannot make this
// rank use unbounded memory.
template <typename Key, typename Value, typename Hash>
class RecentMap {
 public:
  explicit RecentMap(std::size_t limit) : limit_(limit) {}

  // Inserts an entry, unless the key already exists.
  void insert(const Key& key, Value value) {
    if (!map_.try_emplace(key, std::move(value)).second) return;
    order_.push_back(key);
    if (order_.size() <= limit_) return;
    map_.erase(order_.front());
    order_.pop_front();
  }

  void erase(const Key& key) {
    if (map_.erase(key) != 0) std::erase(order_, key);
  }

  const Value* find(const Key& key) const {
    const auto found = map_.find(key);
    return found == map_.end() ? nullptr : &found->second;
  }

  bool contains(const Key& key) const { return map_.contains(key); }

 private:
  std::size_t limit_;
  std::unordered_map<Key, Value, Hash> map_;
  std::deque<Key> order_;
};

}  // namespace bluecomm
