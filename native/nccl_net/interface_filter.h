#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bluecomm::nccl_net {

// Selects network interfaces as NCCL_SOCKET_IFNAME does. The text is a comma-separated
// list of prefixes of interface names. '=' before the list makes it a list of whole
// names, and '^' (also "^=") excludes the listed interfaces. ":port" after a name is
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
