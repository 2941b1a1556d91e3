package doctor

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// NIC is a network card that can write to other hosts' memory, as the kernel's RDMA drivers list it.
type NIC struct {
	Name string `json:"name"`
	MLX5 bool   `json:"mlx5"` // whether kernels could drive it by device/nic.cuh
	Link string `json:"link"` // "InfiniBand" or "Ethernet"
	Up   bool   `json:"up"`   // whether a port of it is
}

// nics reads the kernel's list of cards.
func nics(root fs.FS) []NIC {
	const dir = "sys/class/infiniband"
	var all []NIC
	names, _ := fs.Glob(root, dir+"/*")
	for _, at := range names {
		n := NIC{Name: path.Base(at)}
		n.MLX5 = strings.HasPrefix(n.Name, "mlx5_") ||
			strings.Contains(readFile(root, at+"/device/uevent"), "DRIVER=mlx5_core")
		ports, _ := fs.Glob(root, at+"/ports/*")
		for _, p := range ports {
			n.Link = strings.TrimSpace(readFile(root, p+"/link_layer"))
			if strings.Contains(readFile(root, p+"/state"), "ACTIVE") {
				n.Up = true
				break
			}
		}
		all = append(all, n)
	}
	return all
}

// nicFinding says which cards there are, and whether kernels could drive them.
func nicFinding(m Machine) Finding {
	var names []string
	up, mlx5 := false, false
	for _, n := range m.NICs {
		text := n.Name
		if n.Link != "" {
			text += " (" + n.Link + ")"
		}
		if !n.Up {
			text += " down"
		}
		names = append(names, text)
		up, mlx5 = up || n.Up, mlx5 || n.MLX5
	}
	f := Finding{Name: "RDMA cards", Value: strings.Join(names, ", "), Grade: Note}
	switch {
	case len(names) == 0:
		f.Value, f.Meaning = "none", "data between hosts goes over TCP, by libfabric"
	case !up:
		f.Meaning = "no port is active: data between hosts goes over TCP, by libfabric"
	case !mlx5:
		f.Grade, f.Meaning = Good, "libfabric may use them; kernels drive mlx5 cards alone"
	default:
		f.Grade, f.Meaning = Good, "libfabric may use them; Weft does not connect queue pairs for kernels yet"
		for _, lib := range []string{libibverbs, libmlx5} {
			if m.Libraries[lib] == "" {
				f.Meaning = fmt.Sprintf("libfabric may use them; queue pairs for kernels need %s: install rdma-core", lib)
				break
			}
		}
	}
	return f
}
