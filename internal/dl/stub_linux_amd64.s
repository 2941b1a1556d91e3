#include "go_asm.h"
#include "textflag.h"

GLOBL ·stub(SB), NOPTR|RODATA, $8
DATA ·stub(SB)/8, $run<>(SB)

// run(DI *frame), called on the thread's stack by the rules of C.
// The frame stays in BX, which C preserves. 16 bytes of alignment: the return address, BX, and ten words.
TEXT run<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BX
	SUBQ  $80, SP
	MOVQ  DI, BX

	MOVQ  frame_first(BX), R11
	TESTQ R11, R11
	JZ    arguments
	MOVQ  frame_firstArg(BX), DI
	XORL  AX, AX
	CALL  R11
	TESTL AX, AX
	JNZ   done

arguments:
	CMPQ   frame_spill(BX), $0
	JEQ    loaded
	MOVUPS (frame_args+48)(BX), X0
	MOVUPS (frame_args+64)(BX), X1
	MOVUPS (frame_args+80)(BX), X2
	MOVUPS (frame_args+96)(BX), X3
	MOVUPS (frame_args+112)(BX), X4
	MOVUPS X0, 0(SP)
	MOVUPS X1, 16(SP)
	MOVUPS X2, 32(SP)
	MOVUPS X3, 48(SP)
	MOVUPS X4, 64(SP)

loaded:
	MOVQ (frame_args+0)(BX), DI
	MOVQ (frame_args+8)(BX), SI
	MOVQ (frame_args+16)(BX), DX
	MOVQ (frame_args+24)(BX), CX
	MOVQ (frame_args+32)(BX), R8
	MOVQ (frame_args+40)(BX), R9
	MOVQ frame_fn(BX), R11
	XORL AX, AX // no float registers in use, for variadic functions
	CALL R11

done:
	MOVQ AX, frame_result(BX)
	ADDQ $80, SP
	POPQ BX
	RET
