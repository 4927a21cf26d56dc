// half for counting instructions: a type of the compiler, as in popc.
#pragma once

typedef _Float16 half;
