#include "common/ticket.h"

#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/collectives/collectives.h"
#include "engine/collectives/team.h"

namespace bluecomm {

// Three phases: the first member collects the offers of the others, and sends its
// answer to them; then each member waits until the library of its device has taken the
// call.
Plan plan_ticket(const Call& call) {
  const std::vector<int>& ranks = call.group->ranks;
  const std::shared_ptr<Ticket> ticket = call.ticket;
  const std::span<const std::byte> own = ticket->offer();

  Plan plan;
  plan.algorithm = Algorithm::kTicket;
  plan.scratch_nbytes = ranks.size() * own.size() + Ticket::kAnswerBytes;
  plan.scratch = std::make_shared<std::byte[]>(plan.scratch_nbytes);
  const std::span<std::byte> scratch(plan.scratch.get(), plan.scratch_nbytes);
  const std::span<std::byte> answer = scratch.first(Ticket::kAnswerBytes);
  const std::span<std::byte> offers = scratch.subspan(answer.size());

  Phase collecting;
  Phase answering;
  if (call.group->me == 0) {
    std::memcpy(offers.data(), own.data(), own.size());
    answering.prepare = [ticket, offers, answer] {
      ticket->write_answer(offers, answer);
    };
    for (std::size_t member = 1; member < ranks.size(); ++member) {
      collecting.gathers.push_back(
          copy_from(ranks[member], 0, offers.subspan(member * own.size(), own.size())));
      answering.sends.push_back(
          {.peer = ranks[member], .slot = 0, .bytes = answer, .lingers = true});
    }
  } else {
    collecting.sends.push_back({.peer = ranks.front(), .slot = 0, .bytes = own});
    answering.gathers.push_back(copy_from(ranks.front(), 0, answer));
  }
  Phase taking;
  taking.prepare = [ticket, answer] { ticket->take_answer(answer); };
  taking.gate = ticket;
  plan.phases.push_back(std::move(collecting));
  plan.phases.push_back(std::move(answering));
  plan.phases.push_back(std::move(taking));
  return plan;
}

}  // namespace bluecomm
