#pragma once
#include <thrust/vermilion_thrust.h>
