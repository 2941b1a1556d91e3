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
	here := openFabric()
	if (here.Provider == "") != (here.Err != "") || here.Provider == "tcp" && here.Interface == "" {
		t.Errorf("%+v", here)
	}
}
