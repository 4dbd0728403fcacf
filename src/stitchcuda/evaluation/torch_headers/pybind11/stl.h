#pragma once
#include "../stitch/all.h"
#include "../stitch/module.h"
