import type { Values } from '../../core/api/kind.ts'
import type { VersionAuthor } from '../../core/api/version-archive.ts'
import { versionedResource } from '../../core/api/versioned-resource.ts'
import type { Tx } from '../../core/db/writer.ts'
import { writeManagedGraph } from '../orchestrations/versions.ts'
import { requireValidPlaybook } from './check.ts'
import { compilePlaybook } from './compile-playbook.ts'
import { isSamePlaybook, type PlaybookDefinition, playbookFields } from './definition.ts'
import { type PlaybookRow, playbookKind, playbookVersions } from './model.ts'

/** Name under which playbooks manage graphs and drive runs. */
export const MANAGER = 'playbooks'

/**
 * Playbooks as a versioned resource: a changed definition creates a version, with the graph under the same version
 * number.
 */
export const versionedPlaybooks = versionedResource<PlaybookRow, PlaybookDefinition>({
  kind: playbookKind,
  archive: playbookVersions,
  fields: playbookFields,
  same: isSamePlaybook,
  check: requireValidPlaybook,
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
  return versionedPlaybooks.insert(tx, { ...values, orchestration_id: id }, author)
}
