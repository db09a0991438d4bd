#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/fd.h"
#include "stream/address.h"
#include "stream/handshake.h"

// Functions around system calls on sockets. All sockets are non-blocking and close on
// exec.

namespace bluecomm::stream {

// Throws std::system_error.
UniqueFd listen_on(const Address& address);
Address local_address(int fd);

// Throws std::system_error.
Address peer_address(int fd);
// Returns whether both ends of the connection have the same IP address.
bool stays_on_this_machine(int fd);

// Starts to connect. Returns 0 or errno. The result is known (by connect_error) when
// the socket becomes writable.
int start_connecting(const Address& address, UniqueFd& fd);
int connect_error(int fd);

// Sets the socket options of a connection that carries data.
void prepare_stream(int fd, std::chrono::milliseconds silence_timeout);

// Limits the bytes that the socket holds and has not sent, or removes the limit.
void limit_unsent(int fd, bool on);

// Returns the peer's address such as "10.0.0.2:4711", or "an unknown address".
std::string peer_text(int fd);
std::string error_text(int error);

// Returns whether the peer's kernel has acknowledged nothing for `timeout` although
// bytes or probes were sent to it.
bool is_silent(int fd, std::chrono::milliseconds timeout);

// The packets that a connection has sent again so far, and the time after which it
// does so next.
struct Repeats {
  std::uint64_t packets = 0;
  std::chrono::milliseconds after{0};
};
Repeats repeats_of(int fd);

// Sends and receives the bytes of a handshake, as far as possible without blocking.
// Returns why it has failed, or nothing.
std::optional<std::string> drive(int fd, Handshake& handshake);

// Returns random bytes from the kernel. Throws std::system_error.
Nonce random_nonce();

}  // namespace bluecomm::stream
