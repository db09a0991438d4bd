#pragma once

#include <cstddef>
#include <string_view>

namespace bluecomm {

// Returns at most `limit` bytes of `text`, without cutting a UTF-8 character.
inline std::string_view shorten(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t length = limit;
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) {
    --length;
  }
  return text.substr(0, length);
}

}  // namespace bluecomm
