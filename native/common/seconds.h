#pragma once

#include <chrono>
#include <cstdio>
#include <string>

namespace bluecomm {

// Returns a text such as "2.5 s", for error messages.
inline std::string seconds_text(std::chrono::milliseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s",
                static_cast<double>(duration.count()) / 1000);
  return text;
}

}  // namespace bluecomm
