#include "transport/shm/handshake.h"

#include <sys/random.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "common/bytes.h"

namespace bluecomm::shm {
namespace {

std::vector<std::byte> concatenated(
    std::initializer_list<std::span<const std::byte>> parts) {
  std::vector<std::byte> all;
  for (const auto part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::span<const std::byte> label(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

Nonce make_nonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return nonce;
}

Digest hello_mac(std::span<const std::byte> secret, const Challenge& challenge,
                 const Hello& hello) {
  Hello bare = hello;
  bare.mac = {};
  return hmac_sha256(secret, concatenated({label("hello"), value_bytes(challenge),
                                           value_bytes(bare)}));
}

Digest answer_mac(std::span<const std::byte> secret, const Challenge& challenge,
                  const Hello& hello, const Answer& answer) {
  Answer bare = answer;
  bare.mac = {};
  return hmac_sha256(secret, concatenated({label("answer"), value_bytes(challenge),
                                           value_bytes(hello), value_bytes(bare)}));
}

}  // namespace bluecomm::shm
