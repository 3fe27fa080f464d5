package sqlsink

// This file has all SQL of the sink but the schema. Each statement that changes a fence compares
// what was read, also where a lock makes that needless.

type queries struct {
	fence, topic, insert, claim, advance string
	act, list, listOne, count, now       string // see [operate.Admin]

	rows, rowsWhole, acts string // of the ledger
	box, boxWhole         string // of the outbox, as rows
	retry, discard        string
	add, revise, remove   string
	sign, gone            string
	pruneMany, pruneOld   string

	lockSeeds, unshadow string // see [Dialect]
}

// newQueries returns the statements on tables whose names have a prefix, in a database or schema.
func newQueries(d Dialect, schema, prefix string) queries {
	const (
		key   = ` WHERE group_name = ? AND topic = ? AND number = ?`
		state = `log_id, lease_source, lease_generation, owner, epoch, claim_id, next_offset, mark, applied,` +
			` set_under, mode, mode_by, mode_reason, mode_at`
		row  = ` WHERE kind = ? AND id = ? AND revision = ?`
		acts = ` AND state IN ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run')`
	)
	prefix = schema + prefix
	fences, ledger, box := prefix+`fence`, prefix+`ledger`, prefix+`outbox_entry`
	// A subquery in FROM, because MySQL lets no other read the table that the statement writes.
	last := `COALESCE((SELECT revision FROM (SELECT revision FROM ` + ledger + ` WHERE kind = 'entry' ORDER BY id DESC LIMIT 1) AS newest), 0)`
	const sent = key + ` AND id = ? AND idempotency_key = ?`
	rows := `SELECT kind, id, name, group_name, topic, number, epoch, message_offset, state, cause, operator, role, written_at, changed_at, ` +
		d.now() + `, revision, body, `
	boxed := ` FROM (SELECT 'outbox' AS kind, id, idempotency_key AS name, group_name, topic, number, 0 AS epoch, message_offset,` +
		` CASE retry_requested WHEN 1 THEN 'requested' ELSE '' END AS state, url AS cause, order_key AS operator, '' AS role,` +
		` added_at AS written_at, added_at AS changed_at, 0 AS revision, json_object('scope', scope, 'method', method) AS body, header, body AS message_value` +
		` FROM ` + box + `) AS entries`
	list := `SELECT group_name, topic, number, COALESCE(claimed_at, ''), COALESCE(advanced_at, ''), ` + d.now() + `, ` + state + ` FROM ` + fences
	return queries{
		fence: `SELECT ` + state + ` FROM ` + fences + key,
		topic: `SELECT number, ` + state + ` FROM ` + fences + ` WHERE group_name = ? AND topic = ?`,
		insert: `INSERT INTO ` + fences + ` (group_name, topic, number, log_id, lease_source, next_offset, mark)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?)`,
		claim: `UPDATE ` + fences + ` SET lease_generation = ?, owner = ?, epoch = ?, claim_id = ?,` +
			` next_offset = COALESCE(?, next_offset), mark = COALESCE(?, mark),` +
			` applied = COALESCE(?, applied), claimed_at = ` + d.now() +
			key + ` AND epoch = ? AND claim_id = ?`,
		// Rule R1: the statement that moves the fence compares the claim and the position. An
		// advance that applies no message keeps the mark. next_offset is set last because MySQL
		// reads what it has set.
		advance: `UPDATE ` + fences + ` SET mark = CASE WHEN next_offset = ? THEN mark ELSE ? END,` +
			` applied = CASE WHEN next_offset = ? THEN applied ELSE 1 END,` +
			` advanced_at = ` + d.now() + `, next_offset = ?` +
			key + ` AND claim_id = ? AND next_offset = ?`,

		act: `UPDATE ` + fences + ` SET owner = ?, epoch = ?, claim_id = ?, next_offset = ?, mark = ?, applied = ?, set_under = ?,` +
			` log_id = ?, lease_source = ?, mode = ?, mode_by = ?, mode_reason = ?, mode_at = ?, claimed_at = ` + d.now() +
			key + ` AND claim_id = ? AND epoch = ?`,
		list:    list + ` WHERE (? = '' OR group_name = ?) AND (? = '' OR topic = ?) AND (NOT ? OR mode <> '') ORDER BY group_name, topic, number`,
		listOne: list + key,
		count:   `SELECT group_name, topic, number, COUNT(*) FROM ` + ledger + ` WHERE kind = ? GROUP BY group_name, topic, number`,
		now:     `SELECT ` + d.now(),

		rows:      rows + `NULL, NULL, NULL FROM ` + ledger,
		rowsWhole: rows + `message_key, message_value, message_headers FROM ` + ledger,
		box:       rows + `NULL, NULL, NULL` + boxed,
		boxWhole:  rows + `NULL, message_value, header` + boxed,
		retry:     `UPDATE ` + box + ` SET retry_requested = 1` + sent,
		discard:   `DELETE FROM ` + box + sent,
		acts:      `SELECT COALESCE(MAX(+id), 0) FROM ` + ledger + ` WHERE kind = 'entry'` + acts,
		// An entry has its number in the audit log as its revision, for what is pruned.
		add: `INSERT INTO ` + ledger + ` (written_at, changed_at, role, revision, kind, name, group_name, topic, number, epoch, message_offset, state, cause, operator,` +
			` body, message_key, message_value, message_headers) VALUES (` + d.now() + `, ` + d.now() + `, ` + d.role() + `, CASE ? WHEN 'process' THEN 1 WHEN 'entry' THEN ` + last + ` + 1 ELSE 0 END, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		revise: `UPDATE ` + ledger + ` SET state = ?, cause = ?, operator = ?, body = ?, revision = revision + 1, changed_at = ` + d.now() + row,
		remove: `DELETE FROM ` + ledger + row,
		sign:   `UPDATE ` + ledger + ` SET cause = ?, body = ?, revision = revision + 1, changed_at = ` + d.now() + ` WHERE kind = 'process' AND name = ?`,
		gone:   `DELETE FROM ` + ledger + ` WHERE kind = 'process' AND name = ? AND (? = 0 OR revision = ?)`,

		// Both read only the oldest rows, so that their cost does not grow with the log.
		pruneMany: d.remove(ledger, `SELECT id FROM (SELECT id, revision FROM `+ledger+
			` WHERE kind = 'entry' AND operator = '' ORDER BY id LIMIT 4) AS oldest WHERE revision <= `+last+` - ?`),
		pruneOld: d.remove(ledger, `SELECT id FROM (SELECT id, written_at FROM `+ledger+
			` WHERE kind = 'entry' ORDER BY id LIMIT 4) AS oldest WHERE `+d.outOfDate(`written_at`)),

		lockSeeds: d.lockSeeds(prefix + `migration`),
		unshadow:  d.unshadow(fences, ledger, box),
	}
}
