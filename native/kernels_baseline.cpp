#define FEDTALLY_KERNELS kernels_baseline
#include "kernels_impl.h"
