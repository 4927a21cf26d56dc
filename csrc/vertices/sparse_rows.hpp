// The spikes of a row whose inputs belong to one worker.
#pragma once

#include "vertices/vertex.hpp"

namespace snnipu {

// Return the index of the first id >= `id` in [begin, end), where ids ascend.
inline unsigned firstFrom(const int *ids, unsigned begin, unsigned end, unsigned id) {
  while (begin < end) {
    const unsigned middle = begin + (end - begin) / 2;
    if (static_cast<unsigned>(ids[middle]) < id)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

// Call body(slot, id) for the spikes of a row with ids in `range`. ordered: the row's ids ascend.
template <typename Body>
inline void forOwnSpikes(const int *ids, unsigned spikes, bool ordered, WorkerRange range, const Body &body) {
  for (unsigned slot = ordered ? firstFrom(ids, 0, spikes, range.begin) : 0; slot < spikes; ++slot) {
    const unsigned id = static_cast<unsigned>(ids[slot]);
    if (ordered && id >= range.end)
      break;
    if (id >= range.begin && id < range.end)
      body(slot, id);
  }
}

} // namespace snnipu
