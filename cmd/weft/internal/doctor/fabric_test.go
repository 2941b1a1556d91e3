package doctor

import (
	"net/netip"
	"strings"
	"testing"
)

// TestFabric: the doctor says what would carry data between hosts: the library's version, the provider, the interface.
func TestFabric(t *testing.T) {
	for want, given := range map[string]Fabric{
		"nothing": {Err: "libfabric is unavailable: install it"},
		"libfabric 1.17, provider tcp;ofi_rxm, eth0 (10.0.0.1)": {
			Library: "libfabric 1.17", Provider: "tcp;ofi_rxm", Address: "10.0.0.1", Interface: "eth0",
		},
		"libfabric 2.1, provider cxi": {Library: "libfabric 2.1", Provider: "cxi"},
	} {
		s := machine()
		s.Fabric = func() Fabric { return given }
		f := find(t, Collect(s), "between hosts")
		if f.Value != want || given.Provider == "" && (f.Grade != Note || f.Meaning != given.Err) ||
			given.Provider != "" && (f.Grade != Good || !strings.Contains(f.Meaning, "FI_PROVIDER")) {
			t.Errorf("%+v, want %q", f, want)
		}
	}
	if name := interfaceOf(netip.MustParseAddr("127.0.0.1")); name != "lo" {
		t.Errorf("127.0.0.1 is an address of %q", name)
	}
	for named, want := range map[string]string{"lo": "127.0.0.1", "127.0.0.1": "127.0.0.1", "nosuch0": "WEFT_INTERFACE"} {
		f := openFabric(named)
		if refused := named == "nosuch0"; f.Refused != refused || refused && !strings.Contains(f.Err, want) ||
			f.Provider == "tcp" && (f.Address != want || f.Interface != "lo") {
			t.Errorf("interface %s: %+v", named, f)
		}
		s := machine()
		s.Fabric = func() Fabric { return f }
		if g := find(t, Collect(s), "between hosts").Grade; (g == Bad) != f.Refused {
			t.Errorf("interface %s is graded %v", named, g)
		}
	}
	here := openFabric("")
	if (here.Provider == "") != (here.Err != "") || here.Provider == "tcp" && here.Interface == "" {
		t.Errorf("%+v", here)
	}
}

// TestLibfabric: the line about the library is of the file that was opened, or would be.
func TestLibfabric(t *testing.T) {
	const system, named = "/usr/lib/libfabric.so.1", "/opt/wheel/libfabric.so.1"
	opened := func(file string) Fabric {
		return Fabric{Library: "libfabric 2.5", File: file, Provider: "tcp"}
	}
	failed := Fabric{Err: "no such provider here"}
	for name, tt := range map[string]struct {
		variable string
		given    Fabric
		want     string
		grade    Grade
	}{
		"system":           {"", opened("libfabric.so.1"), system, Good},
		"wheel":            {"", opened(named), named, Good},
		"file":             {named, opened(named), named, Good},
		"folder":           {"/opt/wheel", opened(named), named, Good},
		"no provider":      {"", failed, system, Note},
		"of a file":        {named, failed, named, Note},
		"of a folder":      {"/opt/wheel", failed, named, Note},
		"no such file":     {"/nonexistent", failed, "not found", Note},
		"a folder of none": {"/opt", failed, "not found", Note},
	} {
		s := machine(system[1:], "", named[1:], "")
		s.Getenv = func(k string) string { return map[string]string{"WEFT_LIBFABRIC": tt.variable}[k] }
		s.Fabric = func() Fabric { return tt.given }
		if f := find(t, Collect(s), libfabric); f.Value != tt.want || f.Grade != tt.grade {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestPush: variables about cards for kernels are said, and refused.
func TestPush(t *testing.T) {
	for variables, want := range map[[2]string]Finding{
		{"WEFT_NIC", "software"}:            {Value: "by a card made of Go", Grade: Note},
		{"WEFT_NIC", "bogus"}:               {Value: "set it to software", Grade: Bad},
		{"MSCCLPP_EP_USE_IBGDA", "1"}:       {Value: "by the proxy", Grade: Note},
		{"MSCCLPP_EP_USE_IBGDA", "perhaps"}: {Value: "set it to 1 or 0", Grade: Bad},
	} {
		s := machine()
		s.Getenv = func(k string) string { return map[string]string{variables[0]: variables[1]}[k] }
		if f := find(t, Collect(s), "kernels to hosts"); !strings.Contains(f.Value, want.Value) || f.Grade != want.Grade {
			t.Errorf("%v: %+v", variables, f)
		}
	}
	if m := Collect(machine()); m.Push != (Push{}) {
		t.Errorf("%+v", m.Push)
	}
}
