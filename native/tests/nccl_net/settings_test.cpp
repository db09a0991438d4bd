#include "nccl_net/settings.h"

#include <stdexcept>
#include <vector>

#include "tests/check.h"

namespace bluecomm::nccl_net {
namespace {

Settings read(std::vector<const char*> entries) {
  entries.push_back(nullptr);
  return read_settings(entries.data());
}

TEST(nccl_net_settings, defaults_and_values) {
  const Settings none = read({"PATH=/bin", "BLUECOMM_TCP_STREAMS=3", "BLUECOMM_NET_X"});
  CHECK_EQ(none.streams, 0);
  CHECK_EQ(none.timeout.count(), 30'000);
  CHECK(none.key.empty() && !none.checksum);
  const Settings all = read({"BLUECOMM_NET_STREAMS=16", "BLUECOMM_NET_TIMEOUT_S=2.5",
                             "BLUECOMM_NET_KEY=a=b", "BLUECOMM_NET_CHECKSUM=1"});
  CHECK_EQ(all.streams, 16);
  CHECK_EQ(all.timeout.count(), 2500);
  CHECK_EQ(all.key, std::string("a=b"));
  CHECK(all.checksum);
  CHECK_EQ(read({"BLUECOMM_NET_STREAMS=auto"}).streams, 0);
  CHECK_EQ(none.threads, -1);
  CHECK_EQ(read({"BLUECOMM_NET_THREADS=auto"}).threads, -1);
  CHECK_EQ(read({"BLUECOMM_NET_THREADS=0"}).threads, 0);
  CHECK_EQ(read({"BLUECOMM_NET_THREADS=16"}).threads, 16);
}

TEST(nccl_net_settings, errors_name_the_variable_and_the_value) {
  for (const char* value : {"0", "17", "-1", "4.0", "4 ", "", "many"}) {
    const std::string entry = std::string("BLUECOMM_NET_STREAMS=") + value;
    CHECK_THROWS(read({entry.c_str()}), std::invalid_argument,
                 "BLUECOMM_NET_STREAMS: expected auto or a number from 1 to 16, got '" +
                     std::string(value) + "'");
  }
  for (const char* value : {"17", "-1", "two", "", "2 "}) {
    const std::string entry = std::string("BLUECOMM_NET_THREADS=") + value;
    CHECK_THROWS(read({entry.c_str()}), std::invalid_argument,
                 "BLUECOMM_NET_THREADS: expected auto or a number from 0 to 16, got '" +
                     std::string(value) + "'");
  }
  for (const char* value : {"1.9", "nan", "inf", "-5", "30s", ""}) {
    const std::string entry = std::string("BLUECOMM_NET_TIMEOUT_S=") + value;
    CHECK_THROWS(read({entry.c_str()}), std::invalid_argument,
                 "expected seconds from 2 to 86400");
  }
  CHECK_THROWS(read({"BLUECOMM_NET_CHECKSUM=yes"}), std::invalid_argument, "0 or 1");
  CHECK_THROWS(read({"BLUECOMM_NET_STREAM=4"}), std::invalid_argument,
               "unknown variable BLUECOMM_NET_STREAM; the known ones are "
               "BLUECOMM_NET_STREAMS, ");
}

}  // namespace
}  // namespace bluecomm::nccl_net
