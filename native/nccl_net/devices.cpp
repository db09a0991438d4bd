// Finds the network interfaces that NCCL's own socket transport would use, so that the
// plugin reports the same devices in the same order. Called once, by Plugin::open().
//
// NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY filter the interfaces that are up. Without
// NCCL_SOCKET_IFNAME, find_any() tries NCCL's defaults in turn.
#include "nccl_net/devices.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <system_error>

#include "nccl_net/interface_filter.h"

namespace bluecomm::nccl_net {
namespace {

using stream::Address;

constexpr std::size_t kMaxDevices = 16;  // as NCCL's socket transport
constexpr int kUnknownSpeed = 10'000;    // as NCCL assumes
// Without NCCL_SOCKET_IFNAME, these filters are tried in turn until one matches an
// interface. Between the first and the others, NCCL looks for an interface in the
// subnet of NCCL_COMM_ID.
constexpr const char* kFirst = "ib";
constexpr const char* kOthers[] = {"^docker,lo,virbr", "docker", "lo", "virbr"};

using Interfaces = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;
using Wanted = std::function<bool(const ifaddrs&)>;

Interfaces list_interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    throw std::system_error(errno, std::generic_category(), "getifaddrs");
  }
  return Interfaces(first, freeifaddrs);
}

bool is_usable(const ifaddrs& entry, const std::string& family) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_RUNNING) == 0) return false;
  const int own = entry.ifa_addr->sa_family;
  if (own != AF_INET && own != AF_INET6) return false;
  if (family == "AF_INET" && own != AF_INET) return false;
  if (family == "AF_INET6" && own != AF_INET6) return false;
  const auto* six = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  return own == AF_INET || !IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

std::string pci_path_of(const std::string& name) {
  const std::string link = "/sys/class/net/" + name + "/device";
  const std::unique_ptr<char, void (*)(void*)> path(realpath(link.c_str(), nullptr),
                                                    std::free);
  return path ? path.get() : "";
}

int speed_of(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int speed = 0;
  return file >> speed && speed > 0 ? speed : kUnknownSpeed;
}

Device make_device(const ifaddrs& entry) {
  sockaddr_storage storage{};
  const socklen_t length = stream::address_length(entry.ifa_addr->sa_family);
  std::memcpy(&storage, entry.ifa_addr, length);
  return {entry.ifa_name, pci_path_of(entry.ifa_name), speed_of(entry.ifa_name),
          if_nametoindex(entry.ifa_name), Address(storage, length)};
}

std::vector<Device> select(const Interfaces& all, const std::string& family,
                           const Wanted& wanted) {
  std::vector<Device> found;
  for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
    if (!is_usable(*entry, family) || !wanted(*entry)) continue;
    const bool known = std::any_of(found.begin(), found.end(), [&](const Device& one) {
      return one.name == entry->ifa_name;
    });
    if (!known && found.size() < kMaxDevices) found.push_back(make_device(*entry));
  }
  return found;
}

std::vector<Device> select_by_name(const Interfaces& all, const std::string& family,
                                   const char* text) {
  const InterfaceFilter filter(text);
  return select(all, family,
                [&](const ifaddrs& entry) { return filter.admits(entry.ifa_name); });
}

// Resolves the host of "host:port" or "[address%scope]:port".
std::optional<Address> resolve(const std::string& comm_id) {
  const bool bracketed = comm_id.starts_with('[');
  const std::size_t begin = bracketed ? 1 : 0;
  const std::size_t end = comm_id.find(bracketed ? ']' : ':', begin);
  const std::string host = comm_id.substr(begin, end - begin);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  return Address(storage, found->ai_addrlen);
}

std::span<const unsigned char> ip_of(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);
    return {reinterpret_cast<const unsigned char*>(&four->sin_addr), 4};
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
  return {six->sin6_addr.s6_addr, 16};
}

bool same_subnet(const ifaddrs& entry, const Address& other) {
  if (entry.ifa_netmask == nullptr || entry.ifa_addr->sa_family != other.family()) {
    return false;
  }
  const auto own = ip_of(entry.ifa_addr);
  const auto there = ip_of(other.data());
  // The kernel does not set the address family of a netmask.
  sockaddr_storage mask{};
  std::memcpy(&mask, entry.ifa_netmask, stream::address_length(other.family()));
  mask.ss_family = static_cast<sa_family_t>(other.family());
  const auto bits = ip_of(reinterpret_cast<const sockaddr*>(&mask));
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (((own[i] ^ there[i]) & bits[i]) != 0) return false;
  }
  return true;
}

std::vector<Device> select_by_subnet(const Interfaces& all,
                                     const DeviceChoice& choice) {
  // Like NCCL, which ignores values of one character.
  if (choice.comm_id.size() < 2) return {};
  const auto other = resolve(choice.comm_id);
  if (!other) return {};
  auto found =
      select(all, "", [&](const ifaddrs& entry) { return same_subnet(entry, *other); });
  if (found.size() > 1) found.erase(found.begin() + 1, found.end());
  return found;
}

std::vector<Device> find_any(const Interfaces& all, const DeviceChoice& choice) {
  auto found = select_by_name(all, choice.family, kFirst);
  if (found.empty()) found = select_by_subnet(all, choice);
  for (const char* text : kOthers) {
    if (found.empty()) found = select_by_name(all, choice.family, text);
  }
  return found;
}

}  // namespace

std::vector<Device> find_devices(const DeviceChoice& choice) {
  const Interfaces all = list_interfaces();
  const bool chosen = choice.interfaces.size() > 1;
  auto found = chosen ? select_by_name(all, choice.family, choice.interfaces.c_str())
                      : find_any(all, choice);
  if (!found.empty()) return found;
  throw std::runtime_error(
      "no network interface is up that matches NCCL_SOCKET_IFNAME='" +
      choice.interfaces + "' and NCCL_SOCKET_FAMILY='" + choice.family +
      "'; correct or unset these variables");
}

}  // namespace bluecomm::nccl_net
