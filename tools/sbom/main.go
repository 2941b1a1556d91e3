// Command sbom tells what is inside the files of a release: a bill of materials (CycloneDX 1.6), and
// the licences that must go with them. It takes both from the programs themselves, in which Go
// records the modules that they were built of.
//
//	sbom -notices FILE PROGRAM...
//	sbom -bill FILE -commit HASH -time SECONDS ARTIFACT[=PROGRAM[,PROGRAM]]...
//
// A PROGRAM is a command or library that Go built, and an ARTIFACT a file of the release with the
// programs that are inside. Equal arguments give equal files.
package main

import (
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("sbom: ")
	root := flag.String("root", "..", "root of the repository")
	notices := flag.String("notices", "", "write the licences of what is in the programs")
	bill := flag.String("bill", "", "write the bill of materials of the artifacts")
	commit := flag.String("commit", "", "the commit that was built")
	seconds := flag.Int64("time", 0, "when, in seconds since 1970")
	flag.Parse()
	var err error
	switch {
	case (*notices == "") == (*bill == ""):
		err = errors.New("want one of -notices and -bill")
	case *notices != "":
		err = writeNotices(*notices, *root, flag.Args())
	default:
		err = writeBill(*bill, *root, *commit, time.Unix(*seconds, 0).UTC(), flag.Args())
	}
	if err != nil {
		log.Fatal(err)
	}
}

func writeNotices(file, root string, programs []string) error {
	modules, err := modulesOf(programs)
	if err != nil {
		return err
	}
	l, err := readLicences(root, modules)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(l.notices(modules)), 0o644)
}

func writeBill(file, root, commit string, at time.Time, arguments []string) error {
	version, err := os.ReadFile(filepath.Join(root, "VERSION"))
	if err != nil {
		return err
	}
	b := bill{version: strings.TrimSpace(string(version)), commit: commit, at: at}
	var all []module
	for _, argument := range arguments {
		path, programs, found := strings.Cut(argument, "=")
		a, err := readArtifact(path)
		if err != nil {
			return err
		}
		if found {
			if a.modules, err = modulesOf(strings.Split(programs, ",")); err != nil {
				return err
			}
		}
		b.artifacts = append(b.artifacts, a)
		all = append(all, a.modules...)
	}
	b.modules = distinct(all)
	if b.licences, err = readLicences(root, b.modules); err != nil {
		return err
	}
	text, err := b.json()
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// module is a module of Go inside a program. Go itself, whose runtime and library every program has,
// counts as one.
type module struct {
	path, version string
	sum           string // as go.sum has it; Go has none
}

const goItself = "std"

// modulesOf are the modules inside programs, without our own, in order.
func modulesOf(programs []string) ([]module, error) {
	if len(programs) == 0 {
		return nil, errors.New("no programs")
	}
	var all []module
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		all = append(all, module{path: goItself, version: strings.TrimPrefix(info.GoVersion, "go")})
		for _, d := range info.Deps {
			if d.Replace != nil {
				return nil, fmt.Errorf("%s: module %s is replaced: a release has none but published ones", p, d.Path)
			}
			all = append(all, module{d.Path, d.Version, d.Sum})
		}
	}
	return distinct(all), nil
}

func distinct(all []module) []module {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.path+" "+a.version, b.path+" "+b.version) })
	return slices.Compact(all)
}
