// The reductions: the numbers of weft.Op.
#pragma once

namespace weft {

enum { SUM, PROD, MIN, MAX, AVG, PRE_MUL_SUM };

} // namespace weft
