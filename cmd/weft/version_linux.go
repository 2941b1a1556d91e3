package main

import (
	_ "embed"
	"regexp"
	"runtime/debug"

	"github.com/weftgo/weft"
)

// archived is the commit of a source archive; in a clone git has not written it.
//
//go:embed commit.txt
var archived string

// version is the number of the release and the commit of this build, where that is known.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return versionOf(weft.Version(), archived, info)
}

var (
	whole  = regexp.MustCompile(`^[0-9a-f]{40}`)
	pseudo = regexp.MustCompile(`-(?:0\.)?\d{14}-([0-9a-f]{12})(?:\+.*)?$`)
)

// versionOf takes the commit from the source archive, from what the Go toolchain recorded of a clone,
// or from the version under which it fetched the module.
func versionOf(number, archived string, info *debug.BuildInfo) string {
	commit, dirty := whole.FindString(archived), ""
	if commit == "" {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				commit = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				dirty = "+dirty"
			}
		}
	}
	if m := pseudo.FindStringSubmatch(info.Main.Version); m != nil && commit == "" {
		commit = m[1]
	}
	if commit == "" {
		return number
	}
	return number + " " + commit[:min(12, len(commit))] + dirty
}
