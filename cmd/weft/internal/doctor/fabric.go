package doctor

import (
	"context"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"strings"
	"time"

	"github.com/weftgo/weft/bootstrap"
	"github.com/weftgo/weft/fabric"
)

// Fabric is what would carry data between hosts.
type Fabric struct {
	Library   string `json:"library"`   // and its version
	File      string `json:"file"`      // of the library, or the name by which the system's loader found it
	Provider  string `json:"provider"`  // the first that works; empty is none
	Address   string `json:"address"`   // that it takes if ranks do not meet by another one; empty for cards
	Interface string `json:"interface"` // which has that address
	Err       string `json:"error,omitempty"`
	Refused   bool   `json:"refused,omitempty"` // the error is of a variable that Join refuses, too
}

// fabricFor bounds how long the doctor tries providers.
const fabricFor = 30 * time.Second

// openFabric opens libfabric as a rank would that meets others, by the interface that is named.
func openFabric(named string) Fabric {
	ctx, cancel := context.WithTimeout(context.Background(), fabricFor)
	defer cancel()
	o := fabric.Options{Size: 1}
	if named != "" {
		a, err := bootstrap.InterfaceAddr(named)
		if err != nil {
			return Fabric{Err: "WEFT_INTERFACE: " + err.Error(), Refused: true}
		}
		o.Met = a.String()
	}
	d, err := fabric.Open(ctx, o)
	if err != nil {
		return Fabric{Err: strings.TrimPrefix(err.Error(), fabric.ErrUnsupported.Error()+": ")}
	}
	caps := d.Capabilities()
	f := Fabric{Library: caps.Library, File: caps.Path, Provider: caps.Provider}
	if a := d.Address().Addr(); a.IsValid() {
		f.Address, f.Interface = a.String(), interfaceOf(a)
	}
	if err := d.Close(); err != nil {
		f.Err = err.Error()
	}
	return f
}

// interfaceOf names the network interface that has an address.
func interfaceOf(a netip.Addr) string {
	all, _ := net.Interfaces()
	for _, i := range all {
		addresses, _ := i.Addrs()
		for _, has := range addresses {
			if p, err := netip.ParsePrefix(has.String()); err == nil && p.Addr().Unmap() == a.Unmap() {
				return i.Name
			}
		}
	}
	return ""
}

// libfabricFile is the file that was opened, or would be: that of WEFT_LIBFABRIC, or the one that was found.
func libfabricFile(s Sources, f Fabric, found string) string {
	named := s.Getenv("WEFT_LIBFABRIC")
	switch {
	case path.IsAbs(f.File):
		return f.File
	case named == "" || f.File != "":
		return found
	}
	for _, name := range []string{path.Join(named, libfabric), named} {
		if i, err := fs.Stat(s.Root, strings.TrimPrefix(name, "/")); err == nil && !i.IsDir() {
			return name
		}
	}
	return ""
}

// libfabricFinding says which file that is. Whether it carries anything is fabricFinding's.
func libfabricFinding(m Machine) Finding {
	switch file := m.Libraries[libfabric]; {
	case file == "":
		return Finding{libfabric, "not found", "no fabric between machines", Note}
	case m.Fabric.Provider == "":
		return Finding{libfabric, file, "it carries nothing here, as the line about hosts says", Note}
	default:
		return Finding{libfabric, file, "fabrics between machines can be opened", Good}
	}
}

// fabricFinding says which provider ranks would take. Hosts whose lines differ do not connect.
func fabricFinding(m Machine) Finding {
	f := m.Fabric
	switch {
	case f.Refused:
		return Finding{"between hosts", "nothing", f.Err, Bad}
	case f.Provider == "":
		return Finding{"between hosts", "nothing", f.Err, Note}
	}
	value := f.Library + ", provider " + f.Provider
	if f.Interface != "" {
		value += ", " + f.Interface + " (" + f.Address + ")"
	}
	return Finding{"between hosts", value, "every host must take the same provider: FI_PROVIDER names one", Good}
}
