// half for counting instructions: the compiler's own type, as popc has one.
#pragma once

typedef _Float16 half;
