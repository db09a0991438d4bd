#include "kernels/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace bluecomm {

#if defined(__x86_64__)

void stream_copy(std::span<std::byte> dst, std::span<const std::byte> src) noexcept {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kItem = sizeof(__m128i);
  const auto address = reinterpret_cast<std::uintptr_t>(dst.data());
  const std::size_t head = std::min((kLine - address % kLine) % kLine, dst.size());
  std::copy_n(src.begin(), head, dst.begin());
  std::size_t i = head;
  for (; i + kLine <= dst.size(); i += kLine) {
    for (std::size_t k = 0; k < kLine; k += kItem) {
      __m128i item;
      std::memcpy(&item, src.data() + i + k, kItem);
      _mm_stream_si128(reinterpret_cast<__m128i*>(dst.data() + i + k), item);
    }
  }
  _mm_sfence();
  std::copy(src.begin() + static_cast<std::ptrdiff_t>(i), src.end(),
            dst.begin() + static_cast<std::ptrdiff_t>(i));
}

#else

void stream_copy(std::span<std::byte> dst, std::span<const std::byte> src) noexcept {
  std::copy(src.begin(), src.end(), dst.begin());
}

#endif

}  // namespace bluecomm
