#pragma once
#include "../stitch/all.h"
