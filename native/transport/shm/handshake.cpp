#include "transport/shm/handshake.h"

#include <sys/random.h>

#include <cerrno>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace bluecomm::shm {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  static_assert(std::has_unique_object_representations_v<T>);
  return std::as_bytes(std::span(&value, 1));
}

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
  return hmac_sha256(
      secret, concatenated({label("hello"), bytes_of(challenge), bytes_of(bare)}));
}

Digest answer_mac(std::span<const std::byte> secret, const Challenge& challenge,
                  const Hello& hello, const Answer& answer) {
  Answer bare = answer;
  bare.mac = {};
  return hmac_sha256(secret, concatenated({label("answer"), bytes_of(challenge),
                                           bytes_of(hello), bytes_of(bare)}));
}

}  // namespace bluecomm::shm
