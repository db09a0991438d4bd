#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bluecomm {

using Digest = std::array<std::byte, 32>;

// Computes the SHA-256 of the bytes given to update(), in pieces of any size.
// Source: FIPS 180-4, sections 5 and 6.2.
class Sha256 {
 public:
  void update(std::span<const std::byte> data);

  // Returns the digest of all bytes so far. The object must not be used afterwards.
  Digest finish();

 private:
  static constexpr std::size_t kBlockSize = 64;

  void absorb(std::span<const std::byte, kBlockSize> block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockSize> block_{};
  std::uint64_t nbytes_ = 0;
};

Digest sha256(std::span<const std::byte> data);

}  // namespace bluecomm
