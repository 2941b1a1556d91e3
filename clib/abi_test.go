package main_test

import (
	"cmp"
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weftgo/weft/ep"
)

var update = flag.Bool("update", false, "write testdata/abi.txt anew")

// header is weft.h without comments, taken apart.
type header struct {
	functions []string // whole declarations
	structs   []cStruct
	enums     []string // enumerators
	numbers   []string // macros that are numbers
}

type cStruct struct {
	name    string
	members []string
}

var (
	comments    = regexp.MustCompile(`(?s)/\*.*?\*/`)
	declaration = regexp.MustCompile(`(?m)^(?:const char \*|weft_status |int |void )(weft_\w+)\([^)]*\);`)
	structure   = regexp.MustCompile(`(?s)typedef struct weft_\w+ \{(.*?)\} (weft_\w+);`)
	enumeration = regexp.MustCompile(`(?s)typedef enum weft_\w+ \{(.*?)\} weft_\w+;`)
	enumerator  = regexp.MustCompile(`(WEFT_\w+) =\s`)
	number      = regexp.MustCompile(`(?m)^#define (WEFT_\w+) \d+`)
	member      = regexp.MustCompile(`(\w+)(?:\[\w+\])?$`)
)

func readHeader(t *testing.T) header {
	t.Helper()
	sourceTree(t)
	raw, err := os.ReadFile("weft.h")
	if err != nil {
		t.Fatal(err)
	}
	text := comments.ReplaceAllString(string(raw), "")
	var h header
	for _, f := range declaration.FindAllString(text, -1) {
		h.functions = append(h.functions, strings.Join(strings.Fields(f), " "))
	}
	for _, s := range structure.FindAllStringSubmatch(text, -1) {
		c := cStruct{name: s[2]}
		for statement := range strings.SplitSeq(s[1], ";") {
			for declarator := range strings.SplitSeq(statement, ",") {
				if m := member.FindStringSubmatch(strings.TrimSpace(declarator)); m != nil {
					c.members = append(c.members, m[1])
				}
			}
		}
		h.structs = append(h.structs, c)
	}
	for _, e := range enumeration.FindAllStringSubmatch(text, -1) {
		for _, n := range enumerator.FindAllStringSubmatch(e[1], -1) {
			h.enums = append(h.enums, n[1])
		}
	}
	for _, n := range number.FindAllStringSubmatch(text, -1) {
		h.numbers = append(h.numbers, n[1])
	}
	return h
}

// describe asks the C compiler for what programs are built with.
func (h header) describe(t *testing.T) string {
	t.Helper()
	var c strings.Builder
	c.WriteString("#include <stdio.h>\n#include \"weft.h\"\nint main(void) {\n")
	for _, n := range h.numbers {
		fmt.Fprintf(&c, "printf(\"define %s %%d\\n\", %s);\n", n, n)
	}
	for _, e := range h.enums {
		fmt.Fprintf(&c, "printf(\"enum %s %%d\\n\", %s);\n", e, e)
	}
	for _, s := range h.structs {
		fmt.Fprintf(&c, "printf(\"struct %s %%d\\n\", (int)sizeof(%s));\n", s.name, s.name)
		for _, m := range s.members {
			fmt.Fprintf(&c, `printf("\t%[1]s at %%d, %%d bytes\n", (int)offsetof(%[2]s, %[1]s), `+
				"(int)sizeof(((%[2]s *)0)->%[1]s));\n", m, s.name)
		}
	}
	c.WriteString("return 0;\n}\n")
	folder := t.TempDir()
	source, program := filepath.Join(folder, "abi.c"), filepath.Join(folder, "abi")
	if err := os.WriteFile(source, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(compiler(t), "-I.", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

var (
	sizes  = regexp.MustCompile(`(?m)^struct (\w+) (\d+)\n\t(\w+) at 0,`)
	leasts = regexp.MustCompile(`(?m)^least (\w+) (\d+)$`)
)

// What programs were built with must go on working: testdata/abi.txt says what that is, and a
// change of it is a decision. The least size of a struct is that with which it was first recorded,
// whatever it becomes: tools/abigen reads there what the library refuses as too short.
func TestABI(t *testing.T) {
	const record = "testdata/abi.txt"
	h := readHeader(t)
	before, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	least := map[string]string{}
	for _, line := range leasts.FindAllStringSubmatch(string(before), -1) {
		least[line[1]] = line[2]
	}
	got := h.describe(t)
	for _, s := range sizes.FindAllStringSubmatch(got, -1) {
		got += fmt.Sprintf("least %s %s\n", s[1], cmp.Or(least[s[1]], s[2]))
	}
	for _, f := range h.functions {
		got += strings.TrimSuffix(f, ";") + "\n"
	}
	if *update {
		if err := os.WriteFile(record, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(strings.Split(string(before), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("weft.h is not what %s says (-recorded +now). Members may be appended to structs, "+
			"enumerators and functions added; then: "+
			"go test ./clib -run TestABI -update\n%s", record, diff)
	}
}

// Structs grow and never shrink, and begin with their size.
func TestStructsBeginWithTheirSize(t *testing.T) {
	record, err := os.ReadFile("testdata/abi.txt")
	if err != nil {
		t.Fatal(err)
	}
	now := sizes.FindAllStringSubmatch(string(record), -1)
	least := leasts.FindAllStringSubmatch(string(record), -1)
	if h := readHeader(t); len(now) != len(h.structs) || len(least) != len(now) {
		t.Fatalf("weft.h has %d structs, and the record sizes of %d, least ones of %d", len(h.structs), len(now), len(least))
	}
	for i, s := range now {
		is, _ := strconv.Atoi(s[2])
		was, _ := strconv.Atoi(least[i][2])
		if s[3] != "size" || least[i][1] != s[1] || is < was {
			t.Errorf("%s has %d bytes, and had %d (%s); it begins with %s", s[1], is, was, least[i][1], s[3])
		}
	}
}

// What leaves the library is what the header declares, under its own name.
func TestSymbols(t *testing.T) {
	lib, err := elf.Open(filepath.Join(library(t), "libweft.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	if names, err := lib.DynString(elf.DT_SONAME); err != nil || !slices.Equal(names, []string{"libweft.so"}) {
		t.Errorf("the library calls itself %v (%v)", names, err)
	}
	symbols, err := lib.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	for _, f := range readHeader(t).functions {
		want = append(want, declaration.FindStringSubmatch(f)[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("symbols (-header +library):\n%s", diff)
	}
}

// Errors name members of a Spec as weft.h does.
func TestMembersInC(t *testing.T) {
	source, err := os.ReadFile("internal/naming/naming.go")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	inC := map[string]string{}
	for _, m := range regexp.MustCompile(`"([\w.]+)": "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		inC[m[1]] = m[2]
	}
	members := map[string]bool{}
	for _, s := range readHeader(t).structs {
		for _, m := range s.members {
			members[m] = true
		}
	}
	for _, of := range []reflect.Type{reflect.TypeFor[ep.Spec](), reflect.TypeFor[ep.KernelTuning]()} {
		for i := range of.NumField() {
			if name := of.Field(i).Name; name != "Tuning" && !members[inC[name]] {
				t.Errorf("%s is %q, which is no member", name, inC[name])
			}
		}
	}
}
