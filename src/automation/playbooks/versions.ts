import { picked, type Values } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { type Making, restoreArchived } from '../../core/api/version-archive.ts'
import type { Tx } from '../../core/db/write.ts'
import { putManaged } from '../orchestrations/versions.ts'
import { requireValid } from './check.ts'
import { compiled } from './compile.ts'
import { type Definition, definitionFields, isSameStructure } from './definition.ts'
import { type PlaybookRow, playbookKind, playbookVersions } from './model.ts'

export const definitionOf = (row: PlaybookRow): Definition => picked(row, definitionFields) as Definition

/** What names the graphs of playbooks, and drives their runs. */
export const MANAGER = 'playbooks'

/** Writes a version of a playbook with its graph, which has the same number. */
async function archive(tx: Tx, row: PlaybookRow, { created_by, label = null }: Making): Promise<void> {
  await playbookVersions.insert(tx, {
    playbook_id: row.id,
    version: row.version,
    config: definitionOf(row) as never,
    label,
    created_by,
  })
}

const graphOf = (row: Pick<PlaybookRow, 'project_id' | 'name' | 'version' | 'steps'>) => ({
  project_id: row.project_id,
  name: row.name,
  version: row.version,
  managed_by: MANAGER,
  definition: compiled(row),
})

/** Adds a playbook, whose definition has been checked, with its first version. */
export async function insertPlaybook(
  tx: Tx,
  values: Pick<PlaybookRow, 'project_id' | 'name' | 'steps'> & Values<PlaybookRow>,
  making: Making,
): Promise<PlaybookRow> {
  const orchestration = await putManaged(tx, null, graphOf({ ...values, version: 1 }), making)
  const row = await playbookKind.insert(tx, { ...values, version: 1, orchestration_id: orchestration.id })
  await archive(tx, row, making)
  return row
}

/** Writes changes of a playbook whose row the caller holds: another procedure is the next version. */
export async function changePlaybook(
  tx: Tx,
  stored: PlaybookRow,
  changes: Values<PlaybookRow>,
  making: Making,
): Promise<PlaybookRow> {
  const named = { name: stored.name, ...changes }
  if (isSameStructure(definitionOf(stored), definitionOf({ ...stored, ...changes })))
    return playbookKind.update(tx, stored.id, named)
  const row = await playbookKind.update(tx, stored.id, { ...named, version: stored.version + 1 })
  await putManaged(tx, row.orchestration_id, graphOf(row), making)
  await archive(tx, row, making)
  return row
}

/**
 * Writes the procedure of an earlier version as the next one, unless it is what the playbook has.
 * @throws RESOURCE_NOT_FOUND, and what refuses a write
 */
export async function restoreVersion(
  context: Pick<Context, 'tx' | 'services' | 'caller' | 'audit' | 'allow'> & { resource: PlaybookRow },
  number: number,
  label: string | undefined,
): Promise<PlaybookRow> {
  const at = { kind: playbookKind, archive: playbookVersions, number, label }
  return restoreArchived(context, at, async (stored, kept, making) => {
    const config = kept as unknown as Definition
    if (isSameStructure(definitionOf(stored), config)) return null
    await requireValid(context, stored.project_id, config, definitionOf(stored))
    const changes = playbookKind.changes(stored, { ...stored, ...config } as PlaybookRow)
    return changePlaybook(context.tx, stored, changes, making)
  })
}
