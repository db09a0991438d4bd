#pragma once

#include <cstddef>
#include <span>

#include "common/sha256.h"

namespace bluecomm {

// Returns the HMAC-SHA256 of `data`, with which the two ends of a connection prove that
// they know the job's key. Source: RFC 2104.
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);

// Returns 32 bytes derived from `key` by HKDF-SHA256. Without `key`, nobody can relate
// them to `key` or to the result for another `salt` or `info`. Source: RFC 5869.
Digest hkdf_sha256(std::span<const std::byte> key, std::span<const std::byte> salt,
                   std::span<const std::byte> info);

// Compares two byte sequences in a time that does not depend on where they differ, so
// that an attacker who guesses learns nothing about the expected bytes. Lengths are not
// secret.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace bluecomm
