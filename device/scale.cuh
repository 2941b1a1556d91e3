// The scale of a group of numbers that become e4m3: the rule of package simd (QuantizeE4M3).
#pragma once
#include "ptx.cuh"

namespace weft {

// Scale is that of a group whose largest magnitude is most, NaNs left out.
struct Scale {
	float most, factor; // a number times the factor becomes e4m3
	u32 power;			// the bits of the power of two that is not less than most / 448
	bool power_of_two;

	__device__ __forceinline__ Scale(float magnitude, bool power_of_two) : power_of_two(power_of_two) {
		most = fminf(fmaxf(magnitude, 1e-4f), 3.4028234663852886e38f);
		factor = divide(448.0f, most);
		// 448 is 1.75 x 2^8, so it is 2^-8 of most's own, or of the next if most is more than 1.75 times that.
		power = (bits(most) + 0x1FFFFF - (8u << 23)) & ~0x7FFFFFu;
		if (power_of_two) factor = number((254u << 23) - power);
	}

	// size has the bits of what an e4m3 is multiplied by to give the number. It is computed when it is asked for,
	// after the numbers, which need the registers.
	__device__ __forceinline__ u32 size() const { return power_of_two ? power : bits(divide(most, 448.0f)); }

	// exponent is a UE8M0, of a power of two.
	__device__ __forceinline__ u32 exponent() const { return size() >> 23; }
};

} // namespace weft
