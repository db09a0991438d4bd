#include "common/hmac.h"

#include <string>
#include <vector>

#include "tests/check.h"

namespace bluecomm {
namespace {

std::vector<std::byte> repeated(unsigned char value, std::size_t count) {
  return std::vector<std::byte>(count, std::byte{value});
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

void check_hmac(const std::vector<std::byte>& key, const std::vector<std::byte>& data,
                std::string_view expected) {
  CHECK(equal_in_constant_time(hmac_sha256(key, data), from_hex(expected)));
}

// RFC 4231, test cases 1, 2, 3, 6 and 7.
TEST(hmac, matches_the_published_vectors) {
  check_hmac(repeated(0x0b, 20), bytes_of("Hi There"),
             "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  check_hmac(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"),
             "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  check_hmac(repeated(0xaa, 20), repeated(0xdd, 50),
             "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  check_hmac(repeated(0xaa, 131),
             bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"),
             "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  check_hmac(
      repeated(0xaa, 131),
      bytes_of("This is a test using a larger than block-size key and a larger than "
               "block-size data. The key needs to be hashed before being used by the "
               "HMAC algorithm."),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

// RFC 5869, test cases 1 and 3: the first 32 of their 42 bytes.
TEST(hmac, derives_the_published_keys) {
  const auto secret = repeated(0x0b, 22);
  const auto check = [&](std::string_view salt, std::string_view info,
                         std::string_view expected) {
    const Digest key = hkdf_sha256(secret, from_hex(salt), from_hex(info));
    CHECK(equal_in_constant_time(key, from_hex(expected)));
  };
  check("000102030405060708090a0b0c", "f0f1f2f3f4f5f6f7f8f9",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  check("", "", "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
}

TEST(hmac, compares_whole_spans) {
  const auto a = repeated(1, 32);
  auto b = a;
  CHECK(equal_in_constant_time(a, b));
  b.back() = std::byte{2};
  CHECK(!equal_in_constant_time(a, b));
  CHECK(!equal_in_constant_time(a, std::span(a).first(31)));
  CHECK(equal_in_constant_time({}, {}));
}

}  // namespace
}  // namespace bluecomm
