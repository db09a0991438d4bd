// Where NCCL looks for each function and property, by version.
#include "nccl_net/abi.h"

#include "tests/check.h"

namespace bluecomm::nccl_net::abi {
namespace {

template <typename Struct, typename Member>
std::ptrdiff_t place(const Struct& all, const Member& member) {
  return reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&all);
}

template <typename Net>
void check_common() {
  const Net net{};
  CHECK_EQ(place(net, net.name), 0);
  CHECK_EQ(place(net, net.init), 8);
  CHECK_EQ(place(net, net.devices), 16);
  CHECK_EQ(place(net, net.get_properties), 24);
  CHECK_EQ(place(net, net.listen), 32);
  CHECK_EQ(place(net, net.connect), 40);
  CHECK_EQ(place(net, net.accept), 48);
  CHECK_EQ(place(net, net.reg_mr), 56);
  CHECK_EQ(place(net, net.reg_mr_dma_buf), 64);
  CHECK_EQ(place(net, net.dereg_mr), 72);
  CHECK_EQ(place(net, net.isend), 80);
  CHECK_EQ(place(net, net.irecv), 88);
  CHECK_EQ(place(net, net.iflush), 96);
  CHECK_EQ(place(net, net.test), 104);
  CHECK_EQ(place(net, net.close_send), 112);
  CHECK_EQ(place(net, net.close_recv), 120);
  CHECK_EQ(place(net, net.close_listen), 128);
  if constexpr (requires { net.get_device_mr; }) {
    CHECK_EQ(place(net, net.get_device_mr), 136);
    CHECK_EQ(place(net, net.irecv_consumed), 144);
  }
  if constexpr (requires { net.make_virtual_device; }) {
    CHECK_EQ(place(net, net.make_virtual_device), 152);
  }
  if constexpr (requires { net.finalize; }) {
    CHECK_EQ(place(net, net.finalize), 160);
    CHECK_EQ(place(net, net.set_attributes), 168);
  }
}

TEST(nccl_net_abi, functions_are_where_nccl_looks) {
  check_common<NetV6>();
  check_common<NetV7>();
  check_common<NetV8>();
  check_common<NetV9>();
  check_common<NetV10>();
  check_common<NetV11>();
  check_common<NetV12>();
}

template <typename Properties>
void check_head(std::ptrdiff_t speed) {
  const Properties p{};
  CHECK_EQ(place(p, p.pci_path), 8);
  CHECK_EQ(place(p, p.guid), 16);
  CHECK_EQ(place(p, p.ptr_support), 24);
  CHECK_EQ(place(p, p.speed), speed);
  CHECK_EQ(place(p, p.port), speed + 4);
  CHECK_EQ(place(p, p.latency), speed + 8);
  CHECK_EQ(place(p, p.max_comms), speed + 12);
  CHECK_EQ(place(p, p.max_recvs), speed + 16);
  if constexpr (requires { p.device_type; }) {
    CHECK_EQ(place(p, p.device_type), speed + 20);
    CHECK_EQ(place(p, p.device_version), speed + 24);
  }
}

TEST(nccl_net_abi, properties_are_where_nccl_looks) {
  check_head<PropertiesV6>(28);
  check_head<PropertiesV7>(28);
  check_head<PropertiesV8>(32);
  check_head<PropertiesV9>(36);
  check_head<PropertiesV11>(36);
  check_head<PropertiesV12>(36);
  const PropertiesV11 v11{};
  CHECK_EQ(place(v11, v11.virtual_device), 64);
  CHECK_EQ(place(v11, v11.max_p2p_bytes), 88);
  CHECK_EQ(place(v11, v11.max_coll_bytes), 96);
  CHECK_EQ(place(v11, v11.max_multi_request_size), 104);
  const PropertiesV12 v12{};
  CHECK_EQ(place(v12, v12.virtual_device), 64);
  CHECK_EQ(place(v12, v12.max_p2p_bytes), 104);
  CHECK_EQ(place(v12, v12.max_coll_bytes), 112);
  CHECK_EQ(place(v12, v12.max_multi_request_size), 120);
  CHECK_EQ(place(v12, v12.rail_id), 124);
  CHECK_EQ(place(v12, v12.plane_id), 126);
}

}  // namespace
}  // namespace bluecomm::nccl_net::abi
