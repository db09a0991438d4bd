#include "stream/address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace bluecomm::stream {
namespace {

[[noreturn]] void refuse(std::string_view what, std::string_view entry) {
  throw std::invalid_argument(std::string(what) + ": '" + std::string(entry) + "'");
}

std::uint16_t parse_port(std::string_view text, std::string_view entry) {
  std::uint16_t port = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port == 0) {
    refuse("expected a port from 1 to 65535", entry);
  }
  return port;
}

Address parse_entry(std::string_view entry) {
  const std::size_t colon = entry.rfind(':');
  if (colon == std::string_view::npos) refuse("expected address:port", entry);
  std::string_view host = entry.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (bracketed != (host.find(':') != std::string_view::npos)) {
    refuse("expected an IPv6 address, and only that, in brackets", entry);
  }
  return Address(host, parse_port(entry.substr(colon + 1), entry));
}

}  // namespace

Address::Address(std::string_view host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string name(host);
  if (name.empty() || name.size() != std::strlen(name.c_str()) ||
      getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) {
    refuse("expected a numeric IP address", host);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  length_ = found->ai_addrlen;
  std::memcpy(&storage_, found->ai_addr, length_);
  set_port(port);
}

Address::Address(const sockaddr_storage& storage, socklen_t length)
    : storage_(storage), length_(length) {}

Address Address::any(int family) {
  return Address(family == AF_INET6 ? "::" : "0.0.0.0", 0);
}

std::uint16_t Address::port() const {
  // Both families store the port at the same offset.
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

void Address::set_port(std::uint16_t port) {
  reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(port);
}

std::string Address::text() const {
  char host[NI_MAXHOST];
  if (getnameinfo(data(), size(), host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  const bool brackets = family() == AF_INET6;
  std::string text = brackets ? "[" : "";
  text += host;
  text += brackets ? "]:" : ":";
  return text + std::to_string(port());
}

std::vector<Address> parse_offer(std::string_view offer) {
  std::vector<Address> addresses;
  while (true) {
    const std::size_t comma = offer.find(',');
    addresses.push_back(parse_entry(offer.substr(0, comma)));
    if (comma == std::string_view::npos) return addresses;
    offer.remove_prefix(comma + 1);
  }
}

std::string format_offer(const std::vector<Address>& addresses) {
  std::string offer;
  for (const Address& address : addresses) {
    if (!offer.empty()) offer += ',';
    offer += address.text();
  }
  return offer;
}

}  // namespace bluecomm::stream
