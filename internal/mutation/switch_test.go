package mutation

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// switchVar is the environment variable with the number of the guard that is off. A package with
// guards reads it once, into switchName.
const (
	switchVar  = "EPOCHFENCE_MUTATION_WITHOUT"
	switchName = "withoutGuard"
)

// switchFile returns the Go file that is added to a package with guards.
func switchFile(pkg string) string {
	return fmt.Sprintf(`package %s

import (
	mutationOS "os"
	mutationStrconv "strconv"
)

var %s, _ = mutationStrconv.Atoi(mutationOS.Getenv(%q))
`, pkg, switchName, switchVar)
}

// goFile is a Go file in which functions can be switched.
type goFile struct {
	name string // in the module
	src  string
	set  *token.FileSet
	tree *ast.File
}

func parse(name, src string) (*goFile, error) {
	f := &goFile{name: name, src: src, set: token.NewFileSet()}
	var err error
	f.tree, err = parser.ParseFile(f.set, name, src, parser.SkipObjectResolution)
	return f, err
}

func (f *goFile) span(n ast.Node) span {
	return span{f.set.Position(n.Pos()).Offset, f.set.Position(n.End()).Offset}
}

func (f *goFile) enclosing(part span) *ast.FuncDecl {
	for _, d := range f.tree.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil && f.span(d.Body).contains(part) {
			return d
		}
	}
	return nil
}

// canBeSwitched reports whether a function behaves the same when another function calls it in its
// place. It does not if it recovers its caller's panic or inspects its caller.
func canBeSwitched(d *ast.FuncDecl) bool {
	can := true
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit: // a recover in it recovers the panic of its own caller
			ast.Inspect(n, func(n ast.Node) bool { can = can && !looksAtItsCaller(n); return can })
			return false
		case *ast.CallExpr:
			if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "recover" {
				can = false
			}
		}
		can = can && !looksAtItsCaller(n)
		return can
	})
	return can
}

func looksAtItsCaller(n ast.Node) bool {
	s, ok := n.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == "runtime" && (s.Sel.Name == "Caller" || s.Sel.Name == "Callers")
}

// switched returns the file with functions that check the switch. Each function stays in its place
// under another name. Its replacement and its copies without guards are at the end.
func (f *goFile) switched(ms []mutant) string {
	var (
		names []change
		last  strings.Builder
	)
	for _, d := range f.tree.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || d.Body == nil {
			continue
		}
		here := slices.DeleteFunc(slices.Clone(ms), func(m mutant) bool { return len(f.in(d, m)) == 0 })
		if len(here) == 0 {
			continue
		}
		names = append(names, change{f.span(d.Name), asWritten(d)})
		f.writeSwitch(&last, d, here)
		for _, m := range here {
			// A compiler error then names the guard.
			fmt.Fprintf(&last, "\n//line %s:1\n%s\n", m.title(), f.without(d, m))
		}
	}
	return changed(f.src, whole(f.src), names) + "\n" + last.String()
}

func (f *goFile) in(d *ast.FuncDecl, m mutant) []change {
	body := f.span(d.Body)
	return slices.DeleteFunc(slices.Clone(m.changes[f.name]), func(c change) bool { return !body.contains(c.span) })
}

func asWritten(d *ast.FuncDecl) string { return "asWritten_" + d.Name.Name }

func withoutName(d *ast.FuncDecl, number int) string {
	return fmt.Sprintf("without%d_%s", number, d.Name.Name)
}

func (f *goFile) without(d *ast.FuncDecl, m mutant) string {
	function := span{f.set.Position(d.Type.Func).Offset, f.span(d).to}
	return changed(f.src, function, append([]change{{f.span(d.Name), withoutName(d, m.number)}}, f.in(d, m)...))
}

// writeSwitch writes a function that calls the copies of d, or d itself.
func (f *goFile) writeSwitch(b *strings.Builder, d *ast.FuncDecl, ms []mutant) {
	var on, instance string
	fmt.Fprintf(b, "\n//line the switch of %s:1\nfunc ", d.Name.Name)
	if d.Recv != nil {
		receivers, names := f.parameters(d.Recv, "receiver")
		fmt.Fprintf(b, "(%s) ", receivers)
		on = names + "."
	}
	b.WriteString(d.Name.Name)
	if d.Type.TypeParams != nil {
		types, names := f.parameters(d.Type.TypeParams, "type")
		fmt.Fprintf(b, "[%s]", types)
		instance = "[" + names + "]"
	}
	parameters, arguments := f.parameters(d.Type.Params, "argument")
	fmt.Fprintf(b, "(%s)%s {\n\tswitch %s {\n", parameters, f.results(d), switchName)
	call := func(function string) string {
		call := on + function + instance + "(" + arguments + ")"
		if d.Type.Results == nil {
			return call + "; return"
		}
		return "return " + call
	}
	for _, m := range ms {
		fmt.Fprintf(b, "\tcase %d:\n\t\t%s\n", m.number, call(withoutName(d, m.number)))
	}
	fmt.Fprintf(b, "\t}\n\t%s\n}\n", call(asWritten(d)))
}

// parameters returns a function's parameters, each with a name, and the arguments that pass them
// on.
func (f *goFile) parameters(list *ast.FieldList, unnamed string) (declared, passed string) {
	var all, names []string
	for _, field := range list.List {
		of := field.Names
		if len(of) == 0 {
			of = []*ast.Ident{ast.NewIdent("_")}
		}
		for _, name := range of {
			n := name.Name
			if n == "_" {
				n = fmt.Sprintf("%s%d_", unnamed, len(names))
			}
			all = append(all, n+" "+f.text(field.Type))
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				n += "..."
			}
			names = append(names, n)
		}
	}
	return strings.Join(all, ", "), strings.Join(names, ", ")
}

func (f *goFile) results(d *ast.FuncDecl) string {
	if d.Type.Results == nil {
		return ""
	}
	var types []string
	for _, field := range d.Type.Results.List {
		types = append(types, slices.Repeat([]string{f.text(field.Type)}, max(len(field.Names), 1))...)
	}
	return " (" + strings.Join(types, ", ") + ")"
}

func (f *goFile) text(n ast.Node) string {
	var b strings.Builder
	if err := printer.Fprint(&b, f.set, n); err != nil {
		panic(err) // a builder's Write never fails, and the tree comes from the parser
	}
	return b.String()
}

// scriptsVar is the environment variable that names a JSON file of replaced SQL scripts: the text
// of each, and its replacement.
const scriptsVar = "EPOCHFENCE_MUTATION_SCRIPTS"

// All packages read their scripts with this function.
const (
	scriptsFile = "internal/sql/sqlschema/schema.go"
	scriptsRead = "Read"
)

func scriptSwitch(module fs.FS) (map[string]string, error) {
	src, err := fs.ReadFile(module, scriptsFile)
	if err != nil {
		return nil, err
	}
	f, err := parse(scriptsFile, string(src))
	if err != nil {
		return nil, err
	}
	for _, d := range f.tree.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Name.Name == scriptsRead && d.Recv == nil {
			return map[string]string{
				scriptsFile: changed(f.src, whole(f.src), []change{{f.span(d.Name), asWritten(d)}}),
				path.Join(path.Dir(scriptsFile), "mutation_scripts.go"): scriptReader,
			}, nil
		}
	}
	return nil, fmt.Errorf("%s has no function %s, through which all scripts are read; which one is it now?", scriptsFile, scriptsRead)
}

const scriptReader = `package sqlschema

import (
	"encoding/json"
	"io/fs"
	"os"

	"github.com/epochfence/epochfence/migrations"
)

func Read(files fs.FS, dir, of string) []migrations.Migration {
	return asWritten_Read(replacing{files}, dir, of)
}

type replacing struct{ fs.FS }

func (r replacing) ReadFile(name string) ([]byte, error) {
	script, err := fs.ReadFile(r.FS, name)
	if other, ok := replaced[string(script)]; ok {
		return []byte(other), err
	}
	return script, err
}

var replaced = func() (other map[string]string) {
	if name := os.Getenv("` + scriptsVar + `"); name != "" {
		data, err := os.ReadFile(name)
		if err == nil {
			err = json.Unmarshal(data, &other)
		}
		if err != nil {
			panic(err)
		}
	}
	return other
}()
`
