package tuning

import (
	"embed"
	"maps"
	"path"
	"slices"
	"strings"
)

//go:embed profiles/*.json
var files embed.FS

// SharedMemory is the profile of groups on the host.
const SharedMemory = "shared-memory"

// Profiles of this package that serve where there is none of a GPU's own.
const (
	anyShared = "shared"
	anyGPU    = "h100-nvswitch"
)

var builtin = func() map[string]*Table {
	all := map[string]*Table{}
	entries, err := files.ReadDir("profiles")
	for _, e := range entries {
		var text []byte
		if text, err = files.ReadFile(path.Join("profiles", e.Name())); err != nil {
			break
		}
		name := strings.TrimSuffix(e.Name(), ".json")
		if all[name], err = Parse(name, text); err != nil {
			break
		}
	}
	if err != nil {
		panic(err) // they are embedded
	}
	return all
}()

// Profiles are the names of this package's tables.
func Profiles() []string { return slices.Sorted(maps.Keys(builtin)) }

// Builtin is this package's table for a profile: its own, or the one that serves for such profiles.
func Builtin(profile string) *Table {
	t := builtin[profile]
	switch {
	case t != nil:
	case strings.HasSuffix(profile, "-"+anyShared):
		t = builtin[anyShared]
	default:
		t = builtin[anyGPU]
	}
	return t
}

// ProfileOf is the profile of a GPU that the driver names so, on which ranks are alone, or which they share.
func ProfileOf(gpu string, shared bool) string {
	short := strings.ToLower(strings.TrimPrefix(gpu, "NVIDIA "))
	short = strings.Join(strings.FieldsFunc(short, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}), "-")
	for name, t := range builtin {
		if slices.Contains(t.GPUs, gpu) {
			if !shared {
				return name
			}
			short, _, _ = strings.Cut(name, "-")
		}
	}
	if shared {
		return short + "-" + anyShared
	}
	return short + "-peers"
}
