#include "nccl_net/interface_filter.h"

#include "nccl_net/devices.h"
#include "tests/check.h"

namespace bluecomm::nccl_net {
namespace {

std::string admitted(const char* filter) {
  const InterfaceFilter made(filter);
  std::string all;
  for (const char* name : {"eth0", "eth1", "eth10", "ib0", "lo", "docker0"}) {
    if (made.admits(name)) all += std::string(all.empty() ? "" : " ") + name;
  }
  return all;
}

TEST(nccl_net_interface_filter, matches_as_nccl_does) {
  CHECK_EQ(admitted("eth"), std::string("eth0 eth1 eth10"));
  CHECK_EQ(admitted("eth1,ib"), std::string("eth1 eth10 ib0"));
  CHECK_EQ(admitted("=eth1"), std::string("eth1"));
  CHECK_EQ(admitted("=eth1,eth10"), std::string("eth1 eth10"));
  CHECK_EQ(admitted("^docker,lo"), std::string("eth0 eth1 eth10 ib0"));
  CHECK_EQ(admitted("^=eth1,lo"), std::string("eth0 eth10 ib0 docker0"));
  CHECK_EQ(admitted("eth0:4711,ib0"), std::string("eth0 ib0"));
  CHECK_EQ(admitted(",,eth0,"), std::string("eth0"));
  // An empty list matches all names. '=' before '^' is part of a name.
  CHECK_EQ(admitted(""), std::string("eth0 eth1 eth10 ib0 lo docker0"));
  CHECK_EQ(admitted("^"), std::string(""));
  CHECK_EQ(admitted("=^eth"), std::string(""));
}

TEST(nccl_net_devices, loopback_must_be_named_if_another_interface_exists) {
  const auto found = find_devices({"=lo", "", ""});
  REQUIRE(found.size() == 1);
  CHECK_EQ(found[0].name, std::string("lo"));
  CHECK_EQ(found[0].address.text(), std::string("127.0.0.1:0"));
  CHECK(found[0].pci_path.empty());
  CHECK(found[0].speed_mbps > 0);
  CHECK_THROWS(find_devices({"=lo", "AF_INET6", ""}), std::runtime_error,
               "NCCL_SOCKET_IFNAME='=lo' and NCCL_SOCKET_FAMILY='AF_INET6'");
  CHECK_THROWS(find_devices({"nosuchcard", "", ""}), std::runtime_error, "nosuchcard");
}

TEST(nccl_net_devices, the_subnet_of_the_comm_id_is_preferred) {
  // Holds only without InfiniBand, which NCCL prefers.
  const auto found = find_devices({"", "", "127.0.0.9:4711"});
  CHECK_EQ(found.size(), 1u);
  CHECK_EQ(found[0].name, std::string("lo"));
}

}  // namespace
}  // namespace bluecomm::nccl_net
