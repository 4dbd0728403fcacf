// Particles, records of 19 floats, grow older.
#include "frame.h"

namespace {
struct Particle {
    float position[3], speed[3], force[3], colour[4], mass, charge, age, spare[3];
};
static_assert(sizeof(Particle) == 76, "nineteen floats");
constexpr int kParticles = 6 * 1024 * 1024;
Particle* particles;

__global__ void __launch_bounds__(128) cedar_fma(Particle* p, float seconds) {
    int i = blockIdx.x * 128 + threadIdx.x;
    p[i].age += seconds;
}
}  // namespace

extern "C" int truth_prepare(void) {
    TRY(frame::take(&particles, kParticles));
    return 0;
}

extern "C" int truth_run(void) {
    cedar_fma<<<kParticles / 128, 128>>>(particles, 0.01f);
    return cudaGetLastError();
}

extern "C" int truth_release(void) { return frame::give_back(); }
