#include "go_asm.h"
#include "textflag.h"

GLOBL ·stub(SB), NOPTR|RODATA, $8
DATA ·stub(SB)/8, $run<>(SB)

// run(R0 *frame), called on the thread's stack by the rules of C.
// The frame stays in R19, which C preserves. Eight words of arguments are at the bottom of the stack, R19 and the link register above.
TEXT run<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $80, RSP
	STP  (R19, R30), 64(RSP)
	MOVD R0, R19

	MOVD frame_first(R19), R10
	CBZ  R10, arguments
	MOVD frame_firstArg(R19), R0
	BL   (R10)
	CBNZW R0, done

arguments:
	MOVD frame_spill(R19), R10
	CBZ  R10, loaded
	MOVD (frame_args+64)(R19), R10
	MOVD (frame_args+72)(R19), R11
	MOVD R10, 0(RSP)
	MOVD R11, 8(RSP)
	MOVD (frame_args+80)(R19), R10
	MOVD (frame_args+88)(R19), R11
	MOVD R10, 16(RSP)
	MOVD R11, 24(RSP)
	MOVD (frame_args+96)(R19), R10
	MOVD (frame_args+104)(R19), R11
	MOVD R10, 32(RSP)
	MOVD R11, 40(RSP)
	MOVD (frame_args+112)(R19), R10
	MOVD (frame_args+120)(R19), R11
	MOVD R10, 48(RSP)
	MOVD R11, 56(RSP)

loaded:
	MOVD (frame_args+0)(R19), R0
	MOVD (frame_args+8)(R19), R1
	MOVD (frame_args+16)(R19), R2
	MOVD (frame_args+24)(R19), R3
	MOVD (frame_args+32)(R19), R4
	MOVD (frame_args+40)(R19), R5
	MOVD (frame_args+48)(R19), R6
	MOVD (frame_args+56)(R19), R7
	MOVD frame_fn(R19), R10
	BL   (R10)

done:
	MOVD R0, frame_result(R19)
	LDP  64(RSP), (R19, R30)
	ADD  $80, RSP
	RET
