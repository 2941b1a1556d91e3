package main

import (
	"runtime/debug"
	"strings"
)

// version is the version that the Go toolchain recorded for this build: the module's version, or
// the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	// A pseudo-version already names its commit.
	if revision == "" || strings.Contains(v, revision) {
		return v
	}
	return v + " " + revision + dirty
}
