#pragma once
#include "../../stitch/all.h"
#include "../../stitch/cuda.h"
