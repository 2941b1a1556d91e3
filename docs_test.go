package weft_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

//go:generate go run -C tools ./gputests -dir ../docs/benchmarks
//go:generate go run -C tools ./plots -dir ../docs/benchmarks
//go:generate go run -C tools ./apitables -root ..

var (
	fences    = regexp.MustCompile("(?ms)^```.*?^```$")
	links     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headings  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	mentioned = regexp.MustCompile(`docs/[\w./-]+\.md`)
	dropped   = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`)
	comments  = regexp.MustCompile(`(?m)(?:^[ \t]*(?://|\*|#) \S.*\n)+`)
)

// sources calls read with every file of the source tree whose name ends in one of the suffixes.
func sources(t *testing.T, read func(path, text string), suffixes ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("one goroutine reads the source tree")
	}
	if _, err := os.Stat("docs_test.go"); err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (name == "build" || name == "dist" || name == "testdata" || name[0] == '.') {
				return fs.SkipDir
			}
			return nil
		}
		for _, s := range suffixes {
			if strings.HasSuffix(path, s) {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				read(path, string(text))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// anchors are the names by which the headings of a page are linked, as GitHub makes them.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range headings.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		name := dropped.ReplaceAllString(strings.ToLower(strings.ReplaceAll(h[1], "`", "")), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

// TestDocsLinks follows every relative link of the documentation, and every mention of one of its pages in the sources.
func TestDocsLinks(t *testing.T) {
	pages := map[string]string{}
	sources(t, func(path, text string) { pages[path] = text }, ".md")
	for path, text := range pages {
		for _, link := range links.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			name, anchor, _ := strings.Cut(link[1], "#")
			to := path
			if name != "" {
				to = filepath.Join(filepath.Dir(path), name)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, link[1])
			} else if anchor != "" && !anchors(pages[to])[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", path, link[1], to)
			}
		}
	}
	sources(t, func(path, text string) {
		for _, page := range mentioned.FindAllString(text, -1) {
			if pages[filepath.FromSlash(page)] == "" && !strings.Contains(path, "testdata") {
				t.Errorf("%s names %s, which does not exist", path, page)
			}
		}
	}, ".go", ".h", ".py", ".cu", ".cuh", ".sh", ".md")
}

// TestDocsProse holds lines and paragraphs of prose to a length that can be read: 120 columns and
// 120 words. Tables and code may be wider. The linters hold the lines of comments.
func TestDocsProse(t *testing.T) {
	const columns, words = 120, 120
	sources(t, func(path, text string) {
		for paragraph := range strings.SplitSeq(fences.ReplaceAllString(text, ""), "\n\n") {
			if strings.HasPrefix(strings.TrimLeft(paragraph, "\n"), "    ") || strings.Contains(paragraph, "\n|") ||
				strings.HasPrefix(paragraph, "|") {
				continue
			}
			if n := len(strings.Fields(paragraph)); n > words {
				t.Errorf("%s: a paragraph of %d words: %.60q...", path, n, strings.TrimSpace(paragraph))
			}
			for line := range strings.Lines(paragraph) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > columns && !strings.HasPrefix(line, "    ") {
					t.Errorf("%s: a line of %d columns: %.60q...", path, n, line)
				}
			}
		}
	}, ".md")
	sources(t, func(path, text string) {
		for _, paragraph := range comments.FindAllString(text, -1) {
			if n := len(strings.Fields(paragraph)) - strings.Count(paragraph, "\n"); n > words {
				t.Errorf("%s: a paragraph of %d words: %.60q...", path, n, paragraph)
			}
		}
	}, ".go", ".c", ".cc", ".h", ".cu", ".cuh", ".py", ".sh")
}

// TestGoGuide runs the program of the guide for Go as it stands there, as one rank.
func TestGoGuide(t *testing.T) {
	if testing.Short() {
		t.Skip("it is a program of its own")
	}
	text, err := os.ReadFile("docs/guides/go.md")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("needs Go: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "```go\npackage main\n")
	program, _, ok := strings.Cut(rest, "\n```\n")
	if !ok {
		t.Fatal("the guide has no program")
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte("package main\n"+program+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "run", file).CombinedOutput()
	if want := "rank 0 [1 2 3 4]\nrank 0 [1 10]\n"; err != nil || string(out) != want {
		t.Errorf("%v: printed %q, want %q", err, out, want)
	}
}

// TestGlossary looks for what the glossary says is in the code: names change, and the glossary with them.
func TestGlossary(t *testing.T) {
	var all strings.Builder
	sources(t, func(path, text string) {
		all.WriteString(path)
		all.WriteString(text)
	}, ".go", ".h", ".py", ".cu", ".cuh", ".sh", "Makefile")
	code := all.String()
	glossary, err := os.ReadFile("docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	terms := map[string]bool{}
	for line := range strings.Lines(string(glossary)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || strings.Contains(cells[1], "---") {
			continue
		}
		term := strings.TrimSpace(cells[1])
		if terms[term] && term != "term" {
			t.Errorf("%s is defined twice", term)
		}
		terms[term] = true
		for i, name := range strings.Split(cells[3], "`") {
			if i%2 == 1 && !strings.Contains(code, name[strings.LastIndexAny(name, ". ")+1:]) {
				t.Errorf("%s: there is no %s in the code", term, name)
			}
		}
	}
	if len(terms) < 50 {
		t.Errorf("%d terms in the glossary's tables; are these still of four columns?", len(terms))
	}
}

var (
	code     = regexp.MustCompile("(?m)^    .*$|`[^`\n]+`")
	made     = regexp.MustCompile(`(?:^|[ \x60&(])make ([a-z][a-z-]*)`)
	commands = regexp.MustCompile(`(?:^|[ \x60/])weft ((?:[a-z]+ ?)+)((?: ?-[^\x60]*)?)`)
	flags    = regexp.MustCompile(`(?:^| )--([a-z][a-z-]*)`)
	scripted = regexp.MustCompile(`(?:^|[ \x60])((?:scripts|python/examples|examples)/[\w./-]+)`)
)

// TestDocsCommands looks for what the pages' commands name: targets of make, commands of weft with their flags, files.
func TestDocsCommands(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	var source strings.Builder
	sources(t, func(path, text string) {
		if strings.HasPrefix(path, filepath.FromSlash("cmd/weft/")) {
			source.WriteString(text)
		}
	}, ".go")
	cli, found := source.String(), 0
	sources(t, func(path, text string) {
		for _, line := range code.FindAllString(text, -1) {
			if strings.Contains(line, "pip install") && strings.Contains(line, ".whl") {
				t.Errorf("%s: %q: after make release the pattern names wheels for other machines; name the project", path, line)
			}
			for _, m := range made.FindAllStringSubmatch(line, -1) {
				found++
				if !strings.Contains("\n"+string(makefile), "\n"+m[1]+":") {
					t.Errorf("%s: %q: make has no target %s", path, line, m[1])
				}
			}
			for _, m := range scripted.FindAllStringSubmatch(line, -1) {
				found++
				if _, err := os.Stat(filepath.FromSlash(m[1])); err != nil && !strings.HasSuffix(m[1], ".go") {
					t.Errorf("%s: %q: %v", path, line, err)
				}
			}
			for _, m := range commands.FindAllStringSubmatch(line, -1) {
				name, _, _ := strings.Cut(m[1], " ")
				found++
				if !strings.Contains(cli, "\""+name+" ") && !strings.Contains(cli, "\""+name+"\"") {
					t.Errorf("%s: %q: weft has no command %s", path, line, name)
				}
				if name == "run" {
					m[2], _, _ = strings.Cut(m[2], " python") // what follows is the program's
				}
				for _, f := range flags.FindAllStringSubmatch(m[2], -1) {
					if !strings.Contains(cli, "\""+f[1]+"\"") && f[1] != "help" && f[1] != "version" {
						t.Errorf("%s: %q: weft has no flag --%s", path, line, f[1])
					}
				}
			}
		}
	}, ".md")
	if found < 100 {
		t.Errorf("%d commands on all pages; are they still found?", found)
	}
}

// TestPlanGuide has the commands of the guide to plans read only files that the page has told a reader to write.
func TestPlanGuide(t *testing.T) {
	page, err := os.ReadFile("docs/guides/plans.md")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	written := regexp.MustCompile("(?:--out |WriteFile\\(\"|`)([\\w-]+\\.json)")
	read := regexp.MustCompile(`[\w-]+\.json`)
	known := make(map[string]bool)
	commands := 0
	for i, line := range strings.Split(string(page), "\n") {
		made := written.FindAllStringSubmatch(line, -1)
		if strings.HasPrefix(line, "    weft ") {
			commands++
			for _, name := range read.FindAllString(line, -1) {
				if !known[name] && !strings.Contains(line, "--out "+name) {
					t.Errorf("line %d: %s: nothing before has written %s", i+1, strings.TrimSpace(line), name)
				}
			}
		}
		for _, m := range made {
			known[m[1]] = true
		}
	}
	if commands < 10 {
		t.Errorf("the page has %d commands", commands)
	}
}

// TestTroubleshooting looks for every error that callers can branch on, of each language.
func TestTroubleshooting(t *testing.T) {
	page, err := os.ReadFile("docs/guides/troubleshooting.md")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	for path, form := range map[string]string{
		"errors.go":             `(?m)^\t(Err\w+) +=`,
		"bootstrap/errors.go":   `(?m)^\t(Err\w+) += errors`,
		"channel/errors.go":     `(?m)^\t(Err\w+) += `,
		"cuda/errors.go":        `(?m)^var (Err\w+) =`,
		"cuda/kernel/errors.go": `(?m)^var (Err\w+) =`,
		"ep/spec/errors.go":     `(?m)^type (\w*Error) `,
		"clib/weft.h":           `(WEFT_ERROR_\w+) = `,
		"python/weft/errors.py": `(?m)^class (\w+Error)\(`,
	} {
		source, err := os.ReadFile(filepath.FromSlash(path))
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(form).FindAllSubmatch(source, -1)
		if len(names) == 0 {
			t.Errorf("%s: no errors are found any longer", path)
		}
		for _, name := range names {
			if !regexp.MustCompile(`\b` + string(name[1]) + `\b`).Match(page) {
				t.Errorf("%s: %s is not on the page", path, name[1])
			}
		}
	}
}

// TestDocsSite looks that the site's navigation has every page.
func TestDocsSite(t *testing.T) {
	site, err := os.ReadFile("scripts/docs.yml")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	sources(t, func(path, _ string) {
		page, ok := strings.CutPrefix(filepath.ToSlash(path), "docs/")
		if ok && !strings.Contains(string(site), " "+page+"\n") {
			t.Errorf("scripts/docs.yml does not have %s", page)
		}
	}, ".md")
}

// TestComparisonFigures looks for the comparison's figures in the benchmarks, which say where and
// when they were measured.
func TestComparisonFigures(t *testing.T) {
	page, err := os.ReadFile("docs/comparison.md")
	if err != nil {
		t.Skipf("needs the source tree: %v", err)
	}
	var measured strings.Builder
	sources(t, func(path, text string) {
		if strings.HasPrefix(path, filepath.FromSlash("docs/benchmarks/")) {
			measured.WriteString(text)
		}
	}, ".md")
	_, figures, _ := strings.Cut(string(page), "## How fast on GPUs")
	figures, _, _ = strings.Cut(figures, "## When to take another")
	found := regexp.MustCompile(`\b\d+(?:\.\d+)?(?: us| GB/s)|\b\d+\.\d\b`).FindAllString(figures, -1)
	if len(found) < 5 {
		t.Errorf("%d figures", len(found))
	}
	for _, figure := range found {
		n, _, _ := strings.Cut(figure, " ")
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(n) + `\b`).MatchString(measured.String()) {
			t.Errorf("%s stands on no page of the benchmarks", figure)
		}
	}
}
