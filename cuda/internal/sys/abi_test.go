package sys

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
)

// facts reads what the C compiler said: kind, then name, to numbers.
func facts(t *testing.T) map[string]map[string][]int {
	t.Helper()
	f, err := os.Open("testdata/abi.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string]map[string][]int{"size": {}, "offset": {}, "value": {}, "call": {}}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if words[0] == "#" {
			continue
		}
		numbers := []int{}
		for _, w := range words[2:] {
			n, err := strconv.Atoi(w)
			if err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
			numbers = append(numbers, n)
		}
		all[words[0]][words[1]] = numbers
	}
	return all
}

func TestLayouts(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the layouts are those of 64-bit systems")
	}
	var (
		config    LaunchConfig
		attribute LaunchAttribute
		location  Location
		prop      AllocationProp
		access    AccessDesc
		multicast MulticastProp
	)
	value := unsafe.Offsetof(attribute.Value)
	got := map[string]map[string]uintptr{
		"size": {
			"CUlaunchConfig": unsafe.Sizeof(config), "CUlaunchAttribute": unsafe.Sizeof(attribute),
			"CUmemLocation":       unsafe.Sizeof(location),
			"CUmemAllocationProp": unsafe.Sizeof(prop), "CUmemAccessDesc": unsafe.Sizeof(access),
			"CUmulticastObjectProp": unsafe.Sizeof(multicast),
			"CUipcMemHandle":        unsafe.Sizeof(IpcHandle{}),
			"CUmemFabricHandle":     unsafe.Sizeof(FabricHandle{}), "CUuuid": unsafe.Sizeof(UUID{}),
			"CUdevice":    unsafe.Sizeof(Device(0)),
			"CUdeviceptr": unsafe.Sizeof(Pointer(0)), "CUmemGenericAllocationHandle": unsafe.Sizeof(Allocation(0)),
			"CUresult": unsafe.Sizeof(Result(0)),
		},
		"offset": {
			"CUlaunchConfig.gridDimX": unsafe.Offsetof(config.GridX), "CUlaunchConfig.gridDimY": unsafe.Offsetof(config.GridY),
			"CUlaunchConfig.gridDimZ": unsafe.Offsetof(config.GridZ), "CUlaunchConfig.blockDimX": unsafe.Offsetof(config.BlockX),
			"CUlaunchConfig.blockDimY":      unsafe.Offsetof(config.BlockY),
			"CUlaunchConfig.blockDimZ":      unsafe.Offsetof(config.BlockZ),
			"CUlaunchConfig.sharedMemBytes": unsafe.Offsetof(config.SharedBytes),
			"CUlaunchConfig.hStream":        unsafe.Offsetof(config.Stream),
			"CUlaunchConfig.attrs":          unsafe.Offsetof(config.Attributes),
			"CUlaunchConfig.numAttrs":       unsafe.Offsetof(config.AttributeCount),
			"CUlaunchAttribute.id":          unsafe.Offsetof(attribute.ID), "CUlaunchAttribute.value": value,
			"CUlaunchAttributeValue.cooperative":  unsafe.Offsetof(attribute.Value) - value,
			"CUlaunchAttributeValue.clusterDim.x": 0, "CUlaunchAttributeValue.clusterDim.y": 4,
			"CUlaunchAttributeValue.clusterDim.z":                           8,
			"CUlaunchAttributeValue.programmaticStreamSerializationAllowed": 0,

			"CUmemLocation.type":                                  unsafe.Offsetof(location.Type),
			"CUmemLocation.id":                                    unsafe.Offsetof(location.ID),
			"CUmemAllocationProp.type":                            unsafe.Offsetof(prop.Type),
			"CUmemAllocationProp.requestedHandleTypes":            unsafe.Offsetof(prop.HandleTypes),
			"CUmemAllocationProp.location":                        unsafe.Offsetof(prop.Location),
			"CUmemAllocationProp.allocFlags.compressionType":      unsafe.Offsetof(prop.Compression),
			"CUmemAllocationProp.allocFlags.gpuDirectRDMACapable": unsafe.Offsetof(prop.GPUDirectRDMA),
			"CUmemAllocationProp.allocFlags.usage":                unsafe.Offsetof(prop.Usage),
			"CUmulticastObjectProp.numDevices":                    unsafe.Offsetof(multicast.Devices),
			"CUmulticastObjectProp.size":                          unsafe.Offsetof(multicast.Size),
			"CUmulticastObjectProp.handleTypes":                   unsafe.Offsetof(multicast.HandleTypes),
			"CUmulticastObjectProp.flags":                         unsafe.Offsetof(multicast.Flags),
			"CUmemAccessDesc.location":                            unsafe.Offsetof(access.Location),
			"CUmemAccessDesc.flags":                               unsafe.Offsetof(access.Flags),
		},
	}
	all := facts(t)
	for _, kind := range []string{"size", "offset"} {
		want := map[string]uintptr{}
		for name, numbers := range all[kind] {
			want[name] = uintptr(numbers[0])
		}
		if diff := cmp.Diff(want, got[kind]); diff != "" {
			t.Errorf("%s (-C +Go):\n%s", kind, diff)
		}
	}
}

// TestConstants reads the sources, if they are there: every line that names a constant of the
// driver's must have its value.
func TestConstants(t *testing.T) {
	if _, err := os.Stat("abi_test.go"); err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	all := facts(t)["value"]
	line := regexp.MustCompile(`(?m)^\s+\w+\s+(?:\w+\s+)?= (-?\d+)\s+// (CU_\w+)$`)
	codes := regexp.MustCompile(`(?m)^\s+(\d+):\s+"(CUDA_ERROR_\w+)",$`)
	seen := map[string]bool{}
	for file, pattern := range map[string]*regexp.Regexp{
		"constants.go": line, "../../attribute.go": line,
		"codes.go": codes,
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			name, got := m[2], m[1]
			seen[name] = true
			if want, known := all[name]; !known {
				t.Errorf("%s: no fact about %s", file, name)
			} else if fmt.Sprint(want[0]) != got {
				t.Errorf("%s: %s is %s, want %d", file, name, got, want[0])
			}
		}
	}
	for name := range all {
		if !seen[name] {
			t.Errorf("%s is in no source", name)
		}
	}
}

// TestSignatures compares the parameters of every entry with those of the form of the function that
// its version and suffix name.
func TestSignatures(t *testing.T) {
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the sizes are those of 64-bit systems")
	}
	all := facts(t)["call"]
	table := new(Table)
	for _, e := range table.entries() {
		name := e.symbol + e.suffix
		want, known := all[name]
		if !known {
			t.Errorf("no fact about %s", name)
			continue
		}
		got := []int{e.version}
		f := reflect.TypeOf(e.field).Elem()
		inContext := reflect.TypeFor[Context]()
		first := 0
		// The leading context of an entry that runs in one is not the function's.
		if f.NumIn() == len(want) && f.NumIn() > 0 && f.In(0) == inContext {
			first = 1
		}
		for i := first; i < f.NumIn(); i++ {
			got = append(got, int(f.In(i).Size()))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %v: version and parameters (-C +Go):\n%s", name, f, diff)
		}
	}
}

// TestEveryField has one entry for each field, each with its own symbol but for the two forms of an
// import.
func TestEveryField(t *testing.T) {
	table := new(Table)
	fields := reflect.ValueOf(table).Elem()
	bound := map[any]string{}
	for _, e := range table.entries() {
		if other, twice := bound[e.field]; twice {
			t.Errorf("%s and %s share a field", e.symbol, other)
		}
		bound[e.field] = e.symbol
	}
	for i := range fields.NumField() {
		field, name := fields.Field(i).Addr().Interface(), fields.Type().Field(i).Name
		symbol, ok := bound[field]
		switch {
		case !ok:
			t.Errorf("%s has no entry", name)
		case strings.HasPrefix(name, "MemImport"):
		case !strings.EqualFold(symbol, "cu"+name):
			t.Errorf("%s is tied to %s", name, symbol)
		}
	}
}
