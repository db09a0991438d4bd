#pragma once

#include <span>
#include <string>

// The functions of OpenSSL's libcrypto that ciphers use, found when the program runs,
// so that neither building nor running without encryption needs OpenSSL. The types and
// constants are those of its documented interface, <openssl/evp.h>, which has been the
// same since OpenSSL 1.1.0.

namespace bluecomm::stream {

struct Libcrypto {
  struct Context;  // EVP_CIPHER_CTX
  struct Cipher;   // EVP_CIPHER

  // Arguments of control().
  static constexpr int kGetTag = 0x10;  // EVP_CTRL_AEAD_GET_TAG
  static constexpr int kSetTag = 0x11;  // EVP_CTRL_AEAD_SET_TAG

  Context* (*new_context)() = nullptr;
  void (*free_context)(Context*) = nullptr;
  const Cipher* (*aes_256_gcm)() = nullptr;
  // The last argument is 1 to encrypt and 0 to decrypt.
  int (*init)(Context*, const Cipher*, void* engine, const unsigned char* key,
              const unsigned char* nonce, int encrypt) = nullptr;
  // `out` is null for bytes that are authenticated only.
  int (*update)(Context*, unsigned char* out, int* out_nbytes, const unsigned char* in,
                int nbytes) = nullptr;
  int (*final)(Context*, unsigned char* out, int* out_nbytes) = nullptr;
  int (*control)(Context*, int what, int nbytes, void* value) = nullptr;

  std::string name;  // file of the library
};

// Loads the first of `names` that has AES-256-GCM. This includes libraries that the
// process has loaded already, wherever their files are. Throws std::runtime_error, with
// a remedy, if there is none.
Libcrypto load_libcrypto(std::span<const char* const> names);

// Returns the libcrypto of this process or of the system, loaded at the first call.
// Throws as load_libcrypto().
const Libcrypto& libcrypto();

}  // namespace bluecomm::stream
