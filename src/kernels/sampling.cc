#include "kernels/sampling.h"
