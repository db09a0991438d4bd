#include "stream/address.h"

#include <stdexcept>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

TEST(stream_address, offers_survive_a_round_trip) {
  for (const std::string offer :
       {"127.0.0.1:4711", "10.0.0.2:1,[2001:db8::1]:65535", "[::1]:9,1.2.3.4:8"}) {
    CHECK_EQ(format_offer(parse_offer(offer)), offer);
  }
}

TEST(stream_address, scopes_are_kept) {
  CHECK_EQ(Address("fe80::1%lo", 5).text(), "[fe80::1%lo]:5");
}

TEST(stream_address, errors_name_the_invalid_entry) {
  CHECK_THROWS(parse_offer(""), std::invalid_argument, "expected address:port: ''");
  CHECK_THROWS(parse_offer("1.2.3.4:5,"), std::invalid_argument, "address:port: ''");
  CHECK_THROWS(parse_offer("1.2.3.4"), std::invalid_argument, "'1.2.3.4'");
  for (const char* port : {"", "0", "65536", "-1", "1x", " 1", "99999999999"}) {
    CHECK_THROWS(parse_offer("1.2.3.4:" + std::string(port)), std::invalid_argument,
                 "expected a port from 1 to 65535");
  }
  for (const char* text : {"::1:5", "[1.2.3.4]:5", "[]:5"}) {
    CHECK_THROWS(parse_offer(text), std::invalid_argument, "in brackets");
  }
  for (const char* text : {"host:5", ":5", "[host::]:5", "1.2.3:x:5"}) {
    CHECK_THROWS(parse_offer(text), std::invalid_argument, "expected ");
  }
}

}  // namespace
}  // namespace bluecomm::stream
