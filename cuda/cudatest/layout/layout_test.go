package layout

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/cuda/cudatest"
	"github.com/weftgo/weft/cuda/nvrtc"
)

type sample struct {
	Rank      uint32
	TurnBytes uint64
	_         [8]byte
	Other     [3]uint16
}

func TestOf(t *testing.T) {
	want := offset + `static_assert(sizeof(Sample) == 32, "Sample: size");
static_assert(WEFT_OFFSET(Sample, rank) == 0, "Sample.rank: offset");
static_assert(sizeof(((Sample *)0)->rank) == 4, "Sample.rank: size");
static_assert(WEFT_OFFSET(Sample, turn_bytes) == 8, "Sample.turn_bytes: offset");
static_assert(sizeof(((Sample *)0)->turn_bytes) == 8, "Sample.turn_bytes: size");
static_assert(WEFT_OFFSET(Sample, another) == 24, "Sample.another: offset");
static_assert(sizeof(((Sample *)0)->another) == 6, "Sample.another: size");
`
	if diff := cmp.Diff(want, Of("Sample", reflect.TypeFor[sample](), map[string]string{"Other": "another"})); diff != "" {
		t.Error(diff)
	}
}

// TestCompilerRefuses: the compiler of the kernels finds what does not agree.
func TestCompilerRefuses(t *testing.T) {
	compiler := cudatest.NVRTC(t)
	asserts := Of("Sample", reflect.TypeFor[sample](), nil) + Constants(map[string]int{"LIMIT": 5})
	const right = "struct Sample { unsigned rank; unsigned long long turn_bytes, zero; unsigned short " +
		"other[3]; };\nenum { LIMIT = 5 };\n"
	for from, tt := range map[string]struct{ to, want string }{
		"":                      {"", ""},
		"unsigned rank;":        {"unsigned rank, more, last;", "Sample.turn_bytes: offset"},
		", zero":                {"", "Sample.other: offset"},
		"unsigned rank":         {"unsigned short rank", "Sample.rank: size"},
		"other[3]; ":            {"other[3]; char *end; ", "Sample: size"},
		"LIMIT = 5":             {"LIMIT = 6", "LIMIT: value"},
		"turn_bytes, zero":      {"zero, turn_bytes", "Sample.turn_bytes: offset"},
		"unsigned short other[": {"unsigned short gone[", "other"},
	} {
		program := nvrtc.Program{
			Name: "probe", Source: strings.Replace(right, from, tt.to, 1) + asserts,
			Architecture: "sm_90a",
		}
		_, err := compiler.Compile(t.Context(), program)
		if tt.want == "" && err != nil {
			t.Fatalf("%+v", err)
		}
		if tt.want != "" && (err == nil || !strings.Contains(fmt.Sprintf("%+v", err), tt.want)) {
			t.Errorf("%q: %+v, want %q", tt.to, err, tt.want)
		}
	}
}
