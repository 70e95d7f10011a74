#include "kernels/reference.h"
