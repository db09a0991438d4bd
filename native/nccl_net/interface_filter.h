#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bluecomm::nccl_net {

// A choice of network interfaces as NCCL_SOCKET_IFNAME spells it: names separated by
// commas, of which each is the beginning of an interface's name; after '=' the whole
// name; after '^' (also "^=") those that are not wanted. ":port" after a name is
// ignored.
class InterfaceFilter {
 public:
  explicit InterfaceFilter(std::string_view text);

  bool admits(std::string_view name) const;

 private:
  bool excludes_ = false;
  bool exact_ = false;
  std::vector<std::string> names_;
};

}  // namespace bluecomm::nccl_net
