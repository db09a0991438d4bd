#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bluecomm::stream {

// Returns the size of a socket address of AF_INET or AF_INET6.
inline socklen_t address_length(int family) {
  return family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// An IP address and a port.
class Address {
 public:
  // `host` is a numeric IPv4 or IPv6 address without brackets; an IPv6 address may have
  // a %scope. Throws std::invalid_argument.
  Address(std::string_view host, std::uint16_t port);
  Address(const sockaddr_storage& storage, socklen_t length);

  // Returns the wildcard address of this family: 0.0.0.0 or ::, with port 0.
  static Address any(int family);

  int family() const { return storage_.ss_family; }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return length_; }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);

  // Returns text such as "10.0.0.2:4711" or "[fe80::1%eth0]:4711".
  std::string text() const;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// An offer lists the addresses of a rank in order of preference, such as
// "10.0.0.2:4711,[2001:db8::1]:4711". parse_offer throws std::invalid_argument, naming
// the invalid entry.
std::vector<Address> parse_offer(std::string_view offer);
std::string format_offer(const std::vector<Address>& addresses);

}  // namespace bluecomm::stream
