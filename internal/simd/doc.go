// Package simd is the arithmetic of the host engine: reductions, weighted sums, quantisation and
// copies over rows of raw storage, in assembly for AVX2 and AVX-512 and in plain Go for every other
// machine. All three give the same bits.
//
// # Data flow
//
// A row is n elements of one [Type] in memory order. Rows are borrowed for the length of the call,
// need no alignment, and are passed as pointers because they mostly lie in shared memory. bf16 and
// fp16 occupy 16 bits, fp8 8 bits. Every reduction is one shape, the fold:
//
//	acc = init                       one accumulator a column, fp32 (F64: fp64, integers: their own type)
//	for each row: acc = op(acc, x)   x widened exactly
//	out = round(acc)                 once
//
// The accumulators of a block of columns (up to eight vectors) stay in registers while the loop
// runs over all rows, so each row is read once, out is written once, and no intermediate sum
// touches memory. [WeightedSum] is the fold with a fused multiply-add; [PlainSum] the same with
// weights of 1, since fma(1, x, acc) is acc + x; [Scale] one row added to -0, the identity of
// addition; [Reduce] a fold that starts at the identity of its operator; [PreMulSum] one with the
// scalar for a weight. Max is Min between two changes of sign.
//
// bf16 is widened without shuffles: a 32-bit lane holds two elements, the odd one is the lane with
// its lower half cleared, the even one the lane shifted left by 16. They accumulate apart and are
// put together by one bitwise operation at the end.
//
// # Rules
//
// These make a result independent of the machine.
//
//   - Order. Rows are taken in the order given. [Dot] has 64 accumulators and a fixed tree.
//   - Fusion. A weighted sum and a dot product round once in each multiply-add. Plain Go cannot say
//     that in fp32, so [FMA32] computes it in fp64 with round-to-odd; math.FMA or an fp64 sum
//     converted to fp32 would round twice.
//   - Rounding is to nearest even, once, from the exact or fp32 result.
//   - NaN. Every NaN that is written is the positive one with all mantissa bits set (0x7F, 0x7FFF,
//     0x7FFFFFFF, ...), which is also what NVIDIA GPUs return from fp32 arithmetic and from
//     conversions. The sign and payload of the operand are lost, also where a value is only
//     reduced from one source. Copies keep every bit.
//   - Zero. The sum of opposite numbers is +0; -0 + -0 is -0, so a reduction of -0s is -0, while a
//     weighted sum without bias starts from +0. Min and Max order -0 below +0, and return NaN if
//     any operand is NaN.
//   - Subnormals are kept, in operands and results. The processor's flush-to-zero modes must be
//     off, as they are in every thread that Go starts; code that enters from a foreign thread which
//     may have set them has to clear them.
//   - Overflow. bf16 and fp16 become Inf. fp8 saturates: e4m3 at ±448, e5m2 at ±57344, infinite
//     operands included.
//   - Integers wrap. Their average is the exact sum, held in 64 or 128 bits, divided with
//     truncation toward zero. A pre-multiplied sum is the sum times the scalar, since wrapping
//     products distribute over wrapping sums.
//   - Bools. A byte other than 0 is true. OR is the greatest byte and AND the least, cut to 1.
//
// # Paths
//
// The path is chosen once, by the processor's features: avx512 (F, BW, DQ, VL and BMI2), avx2 (with
// FMA and F16C), else portable. WEFT_SIMD=portable, avx2 or avx512 asks for a path; one that the
// machine lacks is lowered to the best it has, and [Path] says which is in use. The portable code
// is the oracle of the tests.
//
// Rows are never read or written beyond their ends: a remainder that does not fill a vector is
// taken under a mask (AVX-512), element by element, or through a buffer on the stack. Assembly
// cannot be preempted, so long rows are cut into calls of about a megabyte, for the sake of the
// garbage collector.
//
// # Streaming
//
// [Copy], [FanOut] and [Zero] can write with non-temporal stores, which do not read the
// destination's lines first and do not displace cached data. Such stores are not ordered with later
// ones: the order of publication is data, [StoreFence], flag. Without streaming the flag's own
// atomic store suffices.
//
// # Cost
//
// A weighted sum of k bf16 rows of n elements executes k*n/16 fused multiply-adds of 512 bits, of
// which Zen 4 starts one a cycle: 1.1 µs for eight rows of 7168 at 3.3 GHz. Widening and the final
// rounding share the other pipes and bring the floor to 1.5 µs. Reading the rows from L2 at 32
// bytes a cycle takes as long as the arithmetic and overlaps it.
//
// # Generated code
//
// tools/simdgen describes each kernel once and emits it for both instruction sets. It refuses
// instructions beyond those that a path asks the processor for.
package simd

//go:generate go run -C ../../tools ./simdgen -dir ../internal/simd
