#define FEDTALLY_KERNELS kernels_v4
#include "kernels_impl.h"
