// Whether this process may use the tile registers of AMX.
#pragma once
#include <string>

namespace tidemill {

struct TileAccess {
  bool present;         // the processor has tiles and products of int8
  std::string refusal;  // why the system does not let this process use them; empty: it does

  bool granted() const { return present && refusal.empty(); }
};

// Asks the processor, and then the system, once for all threads of the process. A child made by fork has what its parent has.
const TileAccess& tile_access();

}  // namespace tidemill
