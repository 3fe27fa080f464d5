package sqlsink

// This file has all SQL of the sink but the schema. Each statement that changes a fence compares
// what was read, also where a lock makes that needless.

type queries struct {
	fence, topic, insert, claim, advance, deadLetter string

	decide, pruneMany, pruneOld, acts      string // the audit log
	hangs                                  string
	requested, replay, replayed, notReplay string // see [operate.Operable]
	act, list, count, now                  string // see [Operator]
	history, letters, letterAct, discard   string
	alive, pruneDead, gone, processes      string
}

func newQueries(d Dialect, prefix string) queries {
	const (
		key   = ` WHERE group_name = ? AND topic = ? AND number = ?`
		state = `log_id, lease_source, lease_generation, owner, epoch, claim_id, next_offset, mark, applied,` +
			` set_under, mode, mode_by, mode_reason, mode_at`
		decision = `id, decided_at, kind, group_name, topic, number, epoch, claim_id, owner, from_offset, to_offset, reason, operator, trace_id`
		letter   = `id, group_name, topic, number, message_offset, epoch, message_time, error, failed_at,` +
			` request, requested, requested_by, requested_at, replay_error, replay_failed_at`
	)
	prefix = d.schema() + prefix
	fences, decisions, letters, processes := prefix+`fence`, prefix+`decision`, prefix+`dead_letter`, prefix+`process`
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
		deadLetter: `INSERT INTO ` + prefix + `dead_letter (group_name, topic, number, message_offset, epoch,` +
			` message_key, message_value, headers, message_time, error, failed_at)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ` + d.now() + `)`,

		decide: `INSERT INTO ` + decisions + ` (decided_at, kind, group_name, topic, number, epoch, claim_id, owner,` +
			` from_offset, to_offset, reason, operator, trace_id) VALUES (` + d.now() + `, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		// Both read only the oldest rows, so that their cost does not grow with the log.
		pruneMany: `DELETE FROM ` + decisions + ` WHERE id IN (SELECT id FROM ` + decisions +
			` WHERE operator = '' AND id <= ? ORDER BY id LIMIT 4)`,
		pruneOld: `DELETE FROM ` + decisions + ` WHERE id IN (SELECT id FROM (SELECT id, decided_at FROM ` + decisions +
			` ORDER BY id LIMIT 4) WHERE ` + d.outOfDate(`decided_at`) + `)`,
		acts: `SELECT COALESCE(MAX(id), 0) FROM ` + decisions + ` WHERE kind IN ('rewind', 'skip', 'pause', 'resume', 'evict', 'rebase', 'run')`,

		// SQLite uses the index only if the kinds are written as in the index.
		hangs: `SELECT ` + decision + ` FROM ` + decisions + key +
			` AND kind IN ('hang', 'on-failure-hang', 'rewind', 'skip', 'resume', 'rebase', 'run') ORDER BY id DESC LIMIT ?`,

		requested: `SELECT id, request, message_offset, message_time, message_key, message_value, headers FROM ` + letters +
			` WHERE group_name = ? AND topic = ? AND number = ? AND requested = 1 ORDER BY id LIMIT ?`,
		replay:   `SELECT requested_by FROM ` + letters + ` WHERE id = ? AND request = ? AND requested = 1`,
		replayed: `DELETE FROM ` + letters + ` WHERE id = ? AND request = ? AND requested = 1`,
		notReplay: `UPDATE ` + letters + ` SET requested = 0, replay_error = ?, replay_failed_at = ` + d.now() +
			` WHERE id = ? AND request = ? AND requested = 1`,

		act: `UPDATE ` + fences + ` SET owner = ?, epoch = ?, claim_id = ?, next_offset = ?, mark = ?, applied = ?, set_under = ?,` +
			` log_id = ?, lease_source = ?, mode = ?, mode_by = ?, mode_reason = ?, mode_at = ?, claimed_at = ` + d.now() +
			key + ` AND claim_id = ? AND epoch = ?`,
		list: `SELECT group_name, topic, number, COALESCE(claimed_at, ''), COALESCE(advanced_at, ''), ` + d.now() + `, ` + state +
			` FROM ` + fences + ` WHERE (? = '' OR group_name = ?) AND (? = '' OR topic = ?) AND (? IS NULL OR number = ?)` +
			` AND (NOT ? OR mode <> '') ORDER BY group_name, topic, number`,
		count: `SELECT group_name, topic, number, COUNT(*) FROM ` + letters + ` GROUP BY group_name, topic, number`,
		now:   `SELECT ` + d.now(),

		history: `SELECT ` + decision + ` FROM ` + decisions,
		letters: `SELECT ` + letter + `, message_key, message_value, headers FROM ` + letters,
		alive: `INSERT INTO ` + processes + ` (run, group_name, name, host, pid, version, problems, every_ms, since, seen_at)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?, ?, ` + d.now() + `, ` + d.now() + `)` +
			` ON CONFLICT (run) DO UPDATE SET problems = excluded.problems, every_ms = excluded.every_ms, seen_at = excluded.seen_at`,
		pruneDead: `DELETE FROM ` + processes + ` WHERE julianday(` + d.now() + `) - julianday(seen_at) > 7 OR group_name = ? AND name = ? AND run <> ?` +
			` AND (julianday(` + d.now() + `) - julianday(seen_at)) * 86400000 > 3 * every_ms`,
		gone: `DELETE FROM ` + processes + ` WHERE run = ?`,
		processes: `SELECT run, group_name, name, host, pid, version, problems, every_ms, since, seen_at, ` + d.now() + ` FROM ` + processes +
			` WHERE ? = '' OR group_name = ?`,

		letterAct: `UPDATE ` + letters + ` SET requested = ?, request = ?, requested_by = ?,` +
			` requested_at = CASE WHEN ? THEN ` + d.now() + ` ELSE requested_at END` +
			` WHERE id = ? AND request = ? AND requested = ?`,
		discard: `DELETE FROM ` + letters + ` WHERE id = ? AND request = ? AND requested = ?`,
	}
}
