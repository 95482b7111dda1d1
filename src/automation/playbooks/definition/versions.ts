import { writeManagedGraph } from '#automation/orchestrations/definition/managed-graph.ts'
import type { Values } from '#core/api/kind.ts'
import type { VersionAuthor } from '#core/resources/version.ts'
import { versioned } from '#core/resources/versioned.ts'
import type { Tx } from '#core/writes/writer.ts'
import { compilePlaybook } from './compile-playbook.ts'
import { comparablePlaybook, playbookFields } from './definition.ts'
import { type PlaybookRow, playbookKind } from './model.ts'

/** Name under which playbooks manage graphs and drive runs. */
export const MANAGER = 'playbooks'

/** A changed definition creates a version, with the graph under the same version number. */
export const playbookVersions = versioned({
  kind: playbookKind,
  prefix: 'pbk_ver',
  fields: playbookFields,
  comparable: comparablePlaybook,
  async changed(tx, row, stored, author) {
    if (row.version !== stored.version) await writeManagedGraph(tx, row.orchestration_id, graphOf(row), author)
  },
})

const graphOf = (row: Pick<PlaybookRow, 'project_id' | 'name' | 'version' | 'steps'>) => ({
  project_id: row.project_id,
  name: row.name,
  version: row.version,
  managed_by: MANAGER,
  definition: compilePlaybook(row),
})

/** Inserts a validated playbook with its graph and its first version. */
export async function insertPlaybook(
  tx: Tx,
  values: Pick<PlaybookRow, 'project_id' | 'name' | 'steps'> & Values<PlaybookRow>,
  author: VersionAuthor,
): Promise<PlaybookRow> {
  const { id } = await writeManagedGraph(tx, null, graphOf({ ...values, version: 1 }), author)
  return playbookVersions.insert(tx, { ...values, orchestration_id: id }, author)
}
