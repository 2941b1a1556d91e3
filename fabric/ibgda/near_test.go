package ibgda

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"

	"github.com/weftgo/weft/fabric/internal/verbs"
)

// TestApart: a card behind the GPU's own switch is nearer than one of its root, and that is nearer than others.
func TestApart(t *testing.T) {
	const root = "/sys/devices/pci0000:10/0000:10:01.0/"
	gpu := root + "0000:11:00.0/0000:12:00.0/0000:13:00.0"
	want := []string{
		root + "0000:11:00.0/0000:12:01.0/0000:14:00.0",
		"/sys/devices/pci0000:10/0000:10:02.0/0000:15:00.0",
		"/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0",
		"",
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortStableFunc(got, func(a, b string) int { return cmp.Compare(apart(gpu, a), apart(gpu, b)) })
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if apart(gpu, gpu) != 0 || apart("", gpu) != apart("", want[0]) {
		t.Error(apart(gpu, gpu), apart("", gpu))
	}
	if place("/nowhere") != "" || place("/") != "/" {
		t.Error(place("/nowhere"), place("/"))
	}
}

// TestMerit: of addresses those are taken that networks route.
func TestMerit(t *testing.T) {
	gid := func(kind verbs.GIDKind, address string) verbs.GID {
		return verbs.GID{Kind: kind, Bytes: netip.MustParseAddr(address).As16()}
	}
	for _, tt := range []struct {
		on   verbs.Link
		gid  verbs.GID
		want int
	}{
		{verbs.Ethernet, gid(verbs.OfRoCE2, "10.0.0.1"), 3},
		{verbs.Ethernet, gid(verbs.OfRoCE2, "2001:db8::1"), 2},
		{verbs.Ethernet, gid(verbs.OfRoCE2, "fe80::1"), 1},
		{verbs.Ethernet, gid(verbs.OfRoCE1, "10.0.0.1"), 0},
		{verbs.Ethernet, gid(verbs.OfInfiniBand, "fe80::1"), 0},
		{verbs.InfiniBand, gid(verbs.OfInfiniBand, "fe80::1"), 1},
		{verbs.InfiniBand, gid(verbs.OfRoCE2, "10.0.0.1"), 0},
	} {
		if got := merit(tt.on, tt.gid); got != tt.want {
			t.Errorf("%s on %s: %d, want %d", tt.gid, tt.on, got, tt.want)
		}
	}
}
