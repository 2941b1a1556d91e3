package simd

import (
	"fmt"
	"os"
	"slices"
)

// Variable is the environment variable that asks for a path.
const Variable = "WEFT_SIMD"

// An isa is one of the three implementations of every kernel.
type isa uint8

const (
	portable isa = iota
	avx2
	avx512
)

var isaNames = [...]string{portable: "portable", avx2: "avx2", avx512: "avx512"}

func (i isa) String() string { return isaNames[i] }

// best is the fastest path that this machine can execute, active the one in use. Only tests change
// active.
var (
	best   = detect()
	active = choose(best, os.Getenv(Variable))
)

// CheckName is an error about a value of the variable that names no path.
func CheckName(want string) error {
	if want != "" && !slices.Contains(isaNames[:], want) {
		return fmt.Errorf("%s=%s: it is portable, avx2, avx512 or empty", Variable, want)
	}
	return nil
}

// choose returns the path named by want, lowered to best; any other name leaves the choice to the
// machine.
func choose(best isa, want string) isa {
	for i, name := range isaNames {
		if name == want {
			return min(isa(i), best)
		}
	}
	return best
}

// Path names the implementation in use: "portable", "avx2" or "avx512".
func Path() string { return active.String() }
