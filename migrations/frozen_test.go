package migrations_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// frozen has the hash of each script that users' databases may have run. Such a script never changes: another
// script adds to it, and earlier programs work beside that.
var frozen = map[string]string{
	"internal/sql/pgschema/migrations/0001_fence.sql":         "5e5c6929dab125d4661f22c30ef05bfe3380e1232cf8fd62a153c0e5a8f3f56b",
	"internal/sql/pgschema/migrations/0002_ledger.sql":        "5a9bed0e6cdb97b012ee8594664d4bff39f6d905e5ee73652375936c4855f563",
	"internal/sql/pgschema/migrations/0003_operate.sql":       "003a210b5a54a3a71c19ce13d24711fd340b53ca2b5b85e299fead5de893fa28",
	"internal/sql/pgschema/migrations/0004_outside.sql":       "775f5b29e2c0dfb363e4fc0173cd58eac97f4900a1a35e7e77b00cd917c255a2",
	"internal/sql/pgschema/migrations/0005_outbox.sql":        "206e447f0cef4c2073815a9433513388e6bb73e737c2a279b00b50d7fd111e00",
	"internal/sql/pgschema/migrations/0006_items.sql":         "c6bc68a622a96ab33e68f57b7e377c46218e9f71631bdfcdb2591d71613f5384",
	"internal/sql/pgschema/migrations/0007_outbox_offset.sql": "b3167222612e1bc6a10ac796758f3b62247284e3bce3c9924f24286325b8ac33",
	"internal/sql/pgschema/migrations/0008_observe.sql":       "002e5b59bb698e3e82c04cc17ca000ea625eeef8291b2e00cfe4e7229080f688",
	"internal/sql/pgschema/migrations/0009_retry.sql":         "893ef3753ec8e67357dbb3c7220852a3ce031f40eb26d6d9ca811ee8d8d8018b",
	"internal/sql/pgschema/migrations/0010_peers.sql":         "c0718b70e7b457793dbec1e53917cc734771a2fa2bbc4f9d7ba891b1f416282d",
	"internal/sql/pgschema/migrations/0011_suspected.sql":     "ee02a0d7203467180992e5b737d35f08a678f79798ae84c7938ee6f1e3480d8e",
	"internal/sql/sqlschema/mariadb/0001_fence.sql":           "ed81a47ca25a5b72617f3f36e31ea648e777a5ea5bb74120b8887b75e3d709f2",
	"internal/sql/sqlschema/mariadb/0002_ledger.sql":          "ad540613b40558f79291614045f53a68725388ccdc7e453e72f422e9ddd8b3ed",
	"internal/sql/sqlschema/mariadb/0003_outbox.sql":          "247e47eab8c85ff81951b06fdb057b2863d45584da976600267e179e52594d0c",
	"internal/sql/sqlschema/mariadb/0004_retry.sql":           "3e2ebd324b86d225c118f1e39a86ce52c3c461c35e413899379f13951b937414",
	"internal/sql/sqlschema/sqlite/0001_fence.sql":            "b368984a905dc08225bfee197bea2b17db86e04679273052f6b8e8ba6c684dd5",
	"internal/sql/sqlschema/sqlite/0002_ledger.sql":           "ec69c53ee6babdd3b44a04948e471ef08af9cd8f73044aa7c3a0b912bdc135df",
	"internal/sql/sqlschema/sqlite/0003_outbox.sql":           "167ae943f8275536f115dc8a15afa1fea4b523c10967638fa72cd78b0e1cf177",
	"internal/sql/sqlschema/sqlite/0004_outbox_offset.sql":    "cad283b7b82f4b241be4d557d94a2ff131df1c80c84fcf1cd0ec15b0302af82e",
	"internal/sql/sqlschema/sqlite/0005_observe.sql":          "963564b91b6c7cf7552a0ace34786e149a51dcb3c522aef3a7fb1c446f948644",
	"internal/sql/sqlschema/sqlite/0006_retry.sql":            "c63dff7a9dde072a1a6246b85a097aa7af44024bd5f198ab67271ce293001320",
	"lease/sqlfence/migrations/postgres/0001_token.sql":       "23d5e16ed5867dd8a108e9512ce12660a03cf10bdcf2194f6ce876dbee61c58f",
	"lease/sqlfence/migrations/sqlite/0001_token.sql":         "5539a3464fad5174bae77c97bb7dbbc170998f5d8c76c5da3891770a15815b07",
	"outbox/httpfence/migrations/postgres/0001_answer.sql":    "e003781f62d5b7def65330326a2bb86ca3d94d9952d86e341d791f2d5a271840",
	"outbox/httpfence/migrations/sqlite/0001_answer.sql":      "36fa8249b03dcdebe9e0e534d924b9908ab322eae6b8be4ccecb6019066f3591",
}

func TestAMigrationNeverChangesOnceItIsPublished(t *testing.T) {
	found := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != ".." {
			return filepath.SkipDir
		}
		if number, _, _ := strings.Cut(d.Name(), "_"); len(number) != 4 || !strings.HasSuffix(d.Name(), ".sql") || strings.Trim(number, "0123456789") != "" {
			return nil
		}
		script, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, "../"))
		found[name] = true
		switch sum := fmt.Sprintf("%x", sha256.Sum256(script)); frozen[name] {
		case sum:
		case "":
			t.Errorf("%s is new: add it to this test, with %s", name, sum)
		default:
			t.Errorf("%s has changed: add another script instead", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range frozen {
		if !found[name] {
			t.Errorf("%s is gone", name)
		}
	}
}
