#include "common/crc32c.h"

#include <span>
#include <string>
#include <vector>

#include "tests/check.h"

namespace bluecomm {
namespace {

// Test vectors of RFC 3720, appendix B.4.
TEST(common_crc32c, matches_the_published_vectors) {
  std::vector<std::byte> bytes(32, std::byte{0});
  CHECK_EQ(crc32c(bytes), 0x8a9136aau);
  bytes.assign(32, std::byte{0xff});
  CHECK_EQ(crc32c(bytes), 0x62a8ab43u);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = std::byte(i);
  CHECK_EQ(crc32c(bytes), 0x46dd794eu);
  const std::string nine = "123456789";
  CHECK_EQ(crc32c(std::as_bytes(std::span(nine))), 0xe3069283u);
  CHECK_EQ(crc32c({}), 0u);
  // A text in two parts.
  const auto text = std::as_bytes(std::span(nine));
  CHECK_EQ(crc32c(text.subspan(4), crc32c(text.first(4))), crc32c(text));
}

}  // namespace
}  // namespace bluecomm
