import type { Values } from '../../core/api/kind.ts'
import type { Making } from '../../core/api/version-archive.ts'
import { versioned } from '../../core/api/versioned.ts'
import type { Tx } from '../../core/db/write.ts'
import { putManaged } from '../orchestrations/versions.ts'
import { requireValid } from './check.ts'
import { compiled } from './compile.ts'
import { type Definition, definitionFields, isSameStructure } from './definition.ts'
import { type PlaybookRow, playbookKind, playbookVersions } from './model.ts'

/** What names the graphs of playbooks, and drives their runs. */
export const MANAGER = 'playbooks'

/** Playbooks as they are written: another procedure is the next version, with the graph that has the same number. */
export const versionedPlaybooks = versioned<PlaybookRow, Definition>({
  kind: playbookKind,
  archive: playbookVersions,
  fields: definitionFields,
  same: isSameStructure,
  check: requireValid,
  async changed(tx, row, stored, making) {
    if (row.version !== stored.version) await putManaged(tx, row.orchestration_id, graphOf(row), making)
  },
})

const graphOf = (row: Pick<PlaybookRow, 'project_id' | 'name' | 'version' | 'steps'>) => ({
  project_id: row.project_id,
  name: row.name,
  version: row.version,
  managed_by: MANAGER,
  definition: compiled(row),
})

/** Adds a playbook, whose definition has been checked, with its graph and its first version. */
export async function insertPlaybook(
  tx: Tx,
  values: Pick<PlaybookRow, 'project_id' | 'name' | 'steps'> & Values<PlaybookRow>,
  making: Making,
): Promise<PlaybookRow> {
  const { id } = await putManaged(tx, null, graphOf({ ...values, version: 1 }), making)
  return versionedPlaybooks.insert(tx, { ...values, orchestration_id: id }, making)
}
