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
