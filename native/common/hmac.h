#pragma once

#include <cstddef>
#include <span>

#include "common/sha256.h"

namespace bluecomm {

// HMAC-SHA256, by which the two ends of a connection prove that they know the job's
// key. Source: RFC 2104.
Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data);

// Takes the same time wherever the first difference is, so that a stranger learns
// nothing about the expected bytes by guessing. Lengths are not secret.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace bluecomm
