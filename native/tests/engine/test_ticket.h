#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/ticket.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {

// A ticket of a rank. The test plays the library, which takes the call by take().
class TestTicket final : public Ticket {
 public:
  explicit TestTicket(int rank, bool is_taken = true) : is_taken_(is_taken) {
    std::memcpy(offer_.data(), &rank, sizeof rank);
  }

  std::span<const std::byte> offer() const override { return offer_; }
  void check_offers(std::span<const std::byte> offers) override {
    for (int member = 0; member * offer_.size() < offers.size(); ++member) {
      int rank = -1;
      std::memcpy(&rank, offers.subspan(member * offer_.size()).data(), sizeof rank);
      if (rank != member) throw std::invalid_argument("the offers do not suit");
    }
  }
  std::uint64_t propose() override { return proposal; }
  void write_answer(std::span<const std::uint64_t> proposals,
                    std::span<std::byte> answer) override {
    if (cannot_answer) {
      throw TicketFailure({Code::kPeerLost, "the library has lost a rank", 0});
    }
    heard.assign(proposals.begin(), proposals.end());
    const int number = (*next)++;
    std::memcpy(answer.data(), &number, sizeof number);
  }
  void take_answer(std::span<const std::byte> answer) override {
    int number = -1;
    std::memcpy(&number, answer.data(), sizeof number);
    number_ = number;
  }
  void fail(const Status&) override { has_failed_ = true; }
  std::vector<LibraryMessage> messages() const override { return moved; }
  std::optional<Status> poll() override {
    if (is_broken) return Status{Code::kInternal, "the library failed", -1};
    return is_taken_ ? std::optional<Status>(Status{}) : std::nullopt;
  }

  void take() { is_taken_ = true; }
  int number() const { return number_; }
  bool has_failed() const { return has_failed_; }

  std::atomic<int>* next = nullptr;  // of rank 0
  std::atomic<bool> is_broken{false};
  bool cannot_answer = false;
  std::uint64_t proposal = 0;
  std::vector<std::uint64_t> heard;  // by the first member
  std::vector<LibraryMessage> moved;

 private:
  std::vector<std::byte> offer_ = std::vector<std::byte>(16);
  std::atomic<bool> is_taken_;
  std::atomic<int> number_{-1};
  std::atomic<bool> has_failed_{false};
};

// The tickets of the ranks of one world.
class Tickets {
 public:
  std::shared_ptr<TestTicket> make(int rank, bool is_taken = true) {
    auto ticket = std::make_shared<TestTicket>(rank, is_taken);
    ticket->next = &next_;
    return ticket;
  }
  int given() const { return next_; }

 private:
  std::atomic<int> next_{0};
};

inline Call on_device(Engine& engine, const std::string& name,
                      std::shared_ptr<Ticket> ticket, std::int64_t count = 3) {
  Call call = make_call(engine, Kind::kAllreduce, name, {}, {});
  call.shape = {count};
  call.ticket = std::move(ticket);
  return call;
}

}  // namespace bluecomm::test
