#include "common/hmac.h"

#include <algorithm>
#include <array>
#include <vector>

namespace bluecomm {

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    const Digest digest = sha256(key);
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  std::array<std::byte, 64> inner_key;
  std::array<std::byte, 64> outer_key;
  for (std::size_t i = 0; i < padded.size(); ++i) {
    inner_key[i] = padded[i] ^ std::byte{0x36};
    outer_key[i] = padded[i] ^ std::byte{0x5c};
  }
  Sha256 inner;
  inner.update(inner_key);
  inner.update(data);
  Sha256 outer;
  outer.update(outer_key);
  outer.update(inner.finish());
  return outer.finish();
}

Digest hkdf_sha256(std::span<const std::byte> key, std::span<const std::byte> salt,
                   std::span<const std::byte> info) {
  const Digest extracted = hmac_sha256(salt, key);
  // One block of the expansion is as long as the result.
  std::vector<std::byte> block(info.begin(), info.end());
  block.push_back(std::byte{1});
  return hmac_sha256(extracted, block);
}

bool equal_in_constant_time(std::span<const std::byte> a,
                            std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  // volatile, so that the compiler does not leave the loop early.
  volatile unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = difference | std::to_integer<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace bluecomm
