package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNICs(t *testing.T) {
	const dir = "sys/class/infiniband/"
	mlx5 := []string{
		dir + "mlx5_0/ports/1/link_layer", "InfiniBand\n", dir + "mlx5_0/ports/1/state", "4: ACTIVE\n",
		dir + "mlx5_1/ports/1/link_layer", "Ethernet\n", dir + "mlx5_1/ports/1/state", "1: DOWN\n",
	}
	verbs := []string{"usr/lib/libibverbs.so.1", ""}
	both := append([]string{"usr/lib/libmlx5.so.1", ""}, verbs...)
	renamed := []string{
		dir + "ibp3s0/device/uevent", "DRIVER=mlx5_core\n", dir + "ibp3s0/ports/2/state", "4: ACTIVE\n",
	}
	for name, tt := range map[string]struct {
		files          []string
		value, meaning string
		grade          Grade
	}{
		"none":       {nil, "none", "over TCP", Note},
		"no library": {mlx5, "mlx5_0 (InfiniBand), mlx5_1 (Ethernet) down", "need libibverbs.so.1", Good},
		"no mlx5":    {append(verbs, mlx5...), "mlx5_0 (InfiniBand), mlx5_1 (Ethernet) down", "need libmlx5.so.1", Good},
		"all":        {append(both, mlx5...), "mlx5_0 (InfiniBand), mlx5_1 (Ethernet) down", "does not connect", Good},
		"renamed":    {append(both, renamed...), "ibp3s0", "does not connect", Good},
		"down":       {mlx5[4:], "mlx5_1 (Ethernet) down", "no port is active", Note},
		"EFA":        {[]string{dir + "efa_0/ports/1/state", "4: ACTIVE\n"}, "efa_0", "mlx5 cards alone", Good},
	} {
		f := find(t, Collect(machine(tt.files...)), "RDMA cards")
		if f.Value != tt.value || !strings.Contains(f.Meaning, tt.meaning) || f.Grade != tt.grade {
			t.Errorf("%s: %+v", name, f)
		}
	}
	want := []NIC{{"mlx5_0", true, "InfiniBand", true}, {"mlx5_1", true, "Ethernet", false}}
	if d := cmp.Diff(want, Collect(machine(mlx5...)).NICs); d != "" {
		t.Error(d)
	}
}
