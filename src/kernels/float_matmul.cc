#include "kernels/float_matmul.h"
