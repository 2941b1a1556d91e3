package main_test

import (
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	enumerator  = regexp.MustCompile(`(WEFT_\w+) = `)
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
	h.functions = declaration.FindAllString(text, -1)
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
			fmt.Fprintf(&c, "printf(\"\\t%s at %%d, %%d bytes\\n\", (int)offsetof(%s, %s), (int)sizeof(((%s *)0)->%s));\n", m, s.name, m, s.name, m)
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

// What programs were built with must go on working: testdata/abi.txt says what that is, and a change of it is a decision.
func TestABI(t *testing.T) {
	h := readHeader(t)
	got := h.describe(t)
	for _, f := range h.functions {
		got += strings.TrimSuffix(f, ";") + "\n"
	}
	const record = "testdata/abi.txt"
	if *update {
		if err := os.WriteFile(record, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("weft.h is not what %s says (-recorded +now). Members may be appended to structs, enumerators and functions added; then: "+
			"go test ./clib -run TestABI -update\n%s", record, diff)
	}
}

// Structs grow and never shrink, and begin with their size: the sizes with which structs began, by which short ones are refused, are in structs.go.
func TestStructsBeginWithTheirSize(t *testing.T) {
	h := readHeader(t)
	layout := h.describe(t)
	for _, s := range h.structs {
		if s.members[0] != "size" {
			t.Errorf("%s begins with %s", s.name, s.members[0])
		}
	}
	source, err := os.ReadFile("structs.go")
	if err != nil {
		t.Fatal(err)
	}
	first := regexp.MustCompile(`(?m)^\t(size\w+)\s+= (\d+)$`).FindAllStringSubmatch(string(source), -1)
	if len(first) != len(h.structs) {
		t.Fatalf("structs.go has %d sizes, weft.h %d structs", len(first), len(h.structs))
	}
	// Those of the first version, in the order of the names; a struct that has grown is larger by now.
	at := map[string]string{
		"sizeTensor": "weft_tensor", "sizeCommOptions": "weft_comm_options", "sizeCommInfo": "weft_comm_info", "sizeWindowInfo": "weft_window_info",
		"sizeSpec": "weft_ep_spec", "sizeEPInfo": "weft_ep_info", "sizeLayout": "weft_ep_layout", "sizeDispatchArgs": "weft_ep_dispatch_args",
		"sizeDispatchResult": "weft_ep_dispatch_result", "sizeCombineArgs": "weft_ep_combine_args",
		"sizeDispatchBackward": "weft_ep_dispatch_backward_args", "sizeCombineBackward": "weft_ep_combine_backward_args",
		"sizeRoutingInfo": "weft_routing_info", "sizeDescription": "weft_routing_description", "sizeGroupOptions": "weft_group_options",
		"sizeKernelTuning": "weft_ep_kernel_tuning", "sizeCensus": "weft_ep_census", "sizeCopyArgs": "weft_ep_copy_args",
	}
	for _, f := range first {
		var now, then int
		_, rest, ok := strings.Cut(layout, "struct "+at[f[1]]+" ")
		if _, err := fmt.Sscan(rest, &now); !ok || err != nil {
			t.Errorf("%s is the size of no struct", f[1])
			continue
		}
		if _, err := fmt.Sscan(f[2], &then); err != nil || now < then {
			t.Errorf("%s has %d bytes, and had %d", at[f[1]], now, then)
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("symbols (-header +library):\n%s", diff)
	}
}
