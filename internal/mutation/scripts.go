package main

import (
	"fmt"
	"go/ast"
	"io/fs"
	"path"
)

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
