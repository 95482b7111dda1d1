/** Tests that a complete run repeats with their projects in a schema for the second cell, and alternately in two servers. */
export const PROFILE = [
  'test/execution/agents.test.ts',
  'test/conversation/sessions.test.ts',
  'test/automation/workflows.test.ts',
  'test/protocols/openai-responses.test.ts',
  'test/formations/deploy.test.ts',
]

const MAKES_CELLS = 'makes the cells of its deployment'
const ONE_DATABASE = 'is about migrations, connections or queues of one database'

/** Tests that a run with `--cells` leaves out, unless they are given, with the reason. */
export const EXCLUDED: Readonly<Record<string, string>> = {
  'test/bin/muster.test.ts': 'runs commands on home, for which test/core/cells-commands.test.ts has those of cells',
  'test/console/cells.test.ts': MAKES_CELLS,
  'test/control/system.test.ts': 'reads the status and the messages of home, the only cell that these operations read',
  'test/core/cell-copies.test.ts': MAKES_CELLS,
  'test/core/cell-credentials.test.ts': MAKES_CELLS,
  'test/core/cell-isolation.test.ts': MAKES_CELLS,
  'test/core/cell-lists.test.ts': MAKES_CELLS,
  'test/core/cell-moves.test.ts': MAKES_CELLS,
  'test/core/cell-schemas.test.ts': MAKES_CELLS,
  'test/core/cells-commands.test.ts': MAKES_CELLS,
  'test/core/cells-profile.test.ts': 'runs tests itself',
  'test/core/cells-system.test.ts': MAKES_CELLS,
  'test/core/cells.test.ts': MAKES_CELLS,
  'test/core/database-errors.test.ts': ONE_DATABASE,
  'test/core/database-socket.test.ts': ONE_DATABASE,
  'test/core/database.test.ts': ONE_DATABASE,
  'test/core/db.test.ts': ONE_DATABASE,
  'test/core/later-releases.test.ts': ONE_DATABASE,
  'test/core/list-counts.test.ts': ONE_DATABASE,
  'test/core/migration-rules.test.ts': ONE_DATABASE,
  'test/core/migrations.test.ts': ONE_DATABASE,
  'test/core/months.test.ts': ONE_DATABASE,
  'test/core/other-postgres.test.ts': 'runs tests itself',
  'test/core/pairs.test.ts': ONE_DATABASE,
  'test/core/pooler.test.ts': ONE_DATABASE,
  'test/core/prepare.test.ts': ONE_DATABASE,
  'test/core/project-moves.test.ts': MAKES_CELLS,
  'test/core/queue.test.ts': ONE_DATABASE,
  'test/core/replicas.test.ts': ONE_DATABASE,
  'test/core/transaction-crashes.test.ts': ONE_DATABASE,
  'test/execution/shares-across-cells.test.ts': MAKES_CELLS,
}
