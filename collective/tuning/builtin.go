package tuning

import (
	"embed"
	"maps"
	"slices"
	"strings"

	"github.com/weftgo/weft/internal/tuningfile"
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
	all, err := tuningfile.Profiles(files, Parse)
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
	case strings.HasSuffix(profile, tuningfile.Shared):
		t = builtin[anyShared]
	default:
		t = builtin[anyGPU]
	}
	return t
}
