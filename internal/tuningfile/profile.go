package tuningfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/weftgo/weft"
)

// known has the profiles of GPUs that the library has tables for, by the name that the driver gives.
var known = map[string]string{
	"NVIDIA H100 80GB HBM3": "h100-nvswitch",
	"NVIDIA H200":           "h200-nvswitch",
}

// Shared ends the profile of ranks that share a GPU.
const Shared = "-shared"

// ProfileOf is the profile of a GPU that the driver names so, on which ranks are alone, or which they share.
func ProfileOf(gpu string, shared bool) string {
	name, ok := known[gpu]
	short, _, _ := strings.Cut(name, "-")
	if !ok {
		short = strings.Join(strings.FieldsFunc(strings.ToLower(strings.TrimPrefix(gpu, "NVIDIA ")), func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9')
		}), "-")
		name = short + "-peers"
	}
	if shared {
		return short + Shared
	}
	return name
}

// Machine is what the GPUs of a communicator have in common.
type Machine struct {
	GPU    string // of the lowest rank, as the driver names it
	Mixed  bool   // some rank's GPU has another name
	Shared bool   // two ranks are on one GPU
}

// Profile is that of the machine.
func (m Machine) Profile() string { return ProfileOf(m.GPU, m.Shared) }

// MachineOf is the machine of a communicator on GPUs: the same on all ranks. It is collective. own is an error of this
// rank's, with which the others must not be left alone.
func MachineOf(ctx context.Context, comm *weft.Comm, op string) (m Machine, own, err error) {
	d := comm.Device().Context().Device()
	gpu, own := d.Name()
	bus, unknown := d.PCIBusID()
	own = errors.Join(own, unknown)
	notes, err := comm.Operations().GatherNotes(ctx, op, fmt.Appendf(nil, "%s\n%s", bus, gpu))
	if err != nil {
		return m, nil, err
	}
	seen := map[string]bool{}
	for _, n := range notes {
		if n == nil { // masked
			continue
		}
		bus, name, _ := bytes.Cut(n, []byte{'\n'})
		if len(seen) == 0 {
			m.GPU = string(name)
		}
		m.Mixed = m.Mixed || m.GPU != string(name)
		m.Shared = m.Shared || seen[string(bus)]
		seen[string(bus)] = true
	}
	return m, own, nil
}

// Profiles are the library's tables, by profile: NAME.json in the folder "profiles" has that of the profile NAME.
// Files that parse refuses are an error.
func Profiles[T any](files fs.FS, parse func(profile string, text []byte) (T, error)) (map[string]T, error) {
	paths, err := fs.Glob(files, "profiles/*.json")
	if err != nil {
		return nil, err
	}
	all := map[string]T{}
	for _, p := range paths {
		text, err := fs.ReadFile(files, p)
		if err != nil {
			return nil, err
		}
		profile := strings.TrimSuffix(path.Base(p), ".json")
		if all[profile], err = parse(profile, text); err != nil {
			return nil, err
		}
	}
	return all, nil
}
