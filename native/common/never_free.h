#pragma once

#include <utility>
#include <vector>

#include "common/mutex.h"

namespace bluecomm {

// Keeps `value` alive until the process ends. Thread-safe.
template <typename T>
void never_free(T value) {
  static Mutex mutex;
  static auto* const kept PT_GUARDED_BY(mutex) = new std::vector<T>();
  const LockGuard lock(mutex);
  kept->push_back(std::move(value));
}

}  // namespace bluecomm
