#define FEDTALLY_KERNELS kernels_v3
#include "kernels_impl.h"
