#pragma once

#include <mutex>
#include <utility>
#include <vector>

namespace bluecomm {

// Keeps `value` until the process ends. Thread-safe.
template <typename T>
void never_free(T value) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<T>();
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(value));
}

}  // namespace bluecomm
