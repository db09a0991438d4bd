// Offers of addresses, which arrive from other ranks through the control plane.
#include <stdexcept>
#include <string_view>

#include "fuzz/fuzz.h"
#include "stream/address.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bluecomm::stream;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto addresses = parse_offer(text);
    const std::string again = format_offer(addresses);
    MUST(format_offer(parse_offer(again)) == again);
  } catch (const std::invalid_argument&) {
    // Most inputs are refused.
  }
  return 0;
}
