#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "common/fd.h"
#include "stream/address.h"
#include "stream/handshake.h"

// The system calls on sockets. All sockets are non-blocking and close on exec.

namespace bluecomm::stream {

// Throws std::system_error.
UniqueFd listen_on(const Address& address);
Address local_address(int fd);

// Throws std::system_error.
Address peer_address(int fd);
// Both ends of the connection are on this machine.
bool stays_on_this_machine(int fd);

// Starts to connect; the outcome is known when the socket becomes writable. 0 or errno.
int start_connecting(const Address& address, UniqueFd& fd);
int connect_error(int fd);

// Options of a connection that carries data.
void prepare_stream(int fd, std::chrono::milliseconds silence_timeout);

// "10.0.0.2:4711", or "an unknown address".
std::string peer_text(int fd);
std::string error_text(int error);

// True if the peer's kernel has acknowledged nothing for `timeout` though it was asked.
bool is_silent(int fd, std::chrono::milliseconds timeout);

// Moves what a handshake has to say and to hear, as far as the socket lets it. Returns
// why the connection is of no use, or nothing.
std::optional<std::string> drive(int fd, Handshake& handshake);

// Fills `bytes` from the kernel's random numbers. Throws std::system_error.
Nonce random_nonce();

}  // namespace bluecomm::stream
