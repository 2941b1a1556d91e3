package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestPagesNameCommands: every command and flag of weft that a page names exists, and so does what the steps of
// "run.sh several" call.
func TestPagesNameCommands(t *testing.T) {
	pages := []string{"../../README.md", "../../CONTRIBUTING.md"}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	root, seen := newRoot(), 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commandsOf(string(text)) {
			seen++
			if wrong := unknownIn(root, c); wrong != "" {
				t.Errorf("%s: %s: there is no %s", page, strings.Join(c, " "), wrong)
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d commands in all pages: they are not found any more", seen)
	}
	steps, err := os.ReadFile("../../scripts/gpu-several.txt")
	if err != nil {
		t.Fatal(err)
	}
	measures := regexp.MustCompile(`(?m)^[a-z].* (lines|json|tune) (.*)$`).FindAllStringSubmatch(string(steps), -1)
	for _, step := range measures {
		args := strings.Fields(step[2])
		switch step[1] {
		case "tune":
			args = append([]string{"tune"}, append(args, "--out", "FILE")...)
		default:
			args = append(args, "--"+step[1])
		}
		if wrong := unknownIn(root, args); wrong != "" {
			t.Errorf("gpu-several.txt: %s: there is no %s", step[0], wrong)
		}
	}
	if len(measures) < 20 {
		t.Errorf("%d steps that call weft: they are not found any more", len(measures))
	}
}

var (
	spans  = regexp.MustCompile("`(?:WEFT_[A-Z_]+=[^\\s`]+ )?(?:build/)?weft ([^`]+)`")
	blocks = regexp.MustCompile(`(?m)^ *(?:\$ )?(?:WEFT_[A-Z_]+=\S+ )?(?:build/)?weft ((?:[a-z].*\\\n)*[a-z].*)$`)
	fenced = regexp.MustCompile("(?ms)^```.*?^```$|(?:^    .*\n)+")
)

// commandsOf are the arguments of all calls of weft in a page: in its text, and in its blocks of code.
func commandsOf(page string) (all [][]string) {
	for _, block := range fenced.FindAllString(page, -1) {
		for _, m := range blocks.FindAllStringSubmatch(block, -1) {
			call, _, _ := strings.Cut(m[1], " #")
			all = append(all, strings.Fields(strings.ReplaceAll(call, "\\\n", " ")))
		}
	}
	for _, m := range spans.FindAllStringSubmatch(fenced.ReplaceAllString(page, "\n"), -1) {
		all = append(all, strings.Fields(m[1]))
	}
	return all
}

// unknownIn is the first command or flag that weft does not have, or empty.
func unknownIn(root *cobra.Command, args []string) string {
	cmd, rest, err := root.Find(args)
	if err != nil {
		return args[0]
	}
	cmd.InitDefaultHelpFlag()
	for len(rest) > 0 {
		arg := rest[0]
		rest = rest[1:]
		name, short := strings.CutPrefix(arg, "-")
		if !short || name == "" {
			if cmd.HasSubCommands() && regexp.MustCompile(`^[a-z]+$`).MatchString(arg) {
				return cmd.CommandPath() + " " + arg
			}
			if slices.Contains([]string{"weft run", "weft trace run"}, cmd.CommandPath()) {
				return "" // what follows is another program's
			}
			continue
		}
		if name == "-" {
			return ""
		}
		var f *pflag.Flag
		name, value, given := strings.Cut(name, "=")
		if long, is := strings.CutPrefix(name, "-"); is {
			f = cmd.Flag(long)
		} else {
			f = cmd.Flags().ShorthandLookup(name[:1])
			given = given || len(name) > 1
		}
		if f == nil {
			return "flag " + arg + " of " + cmd.CommandPath()
		}
		if !given && value == "" && f.NoOptDefVal == "" && len(rest) > 0 {
			rest = rest[1:]
		}
	}
	return ""
}
