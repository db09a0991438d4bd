#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bluecomm::net {

// CRC-32C (Castagnoli) of the bytes; by the processor's own instruction where there is
// one. Source: RFC 3720, section 12.1.
std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace bluecomm::net
