import { picked, type Values } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { type Making, restoreArchived } from '../../core/api/version-archive.ts'
import type { Tx } from '../../core/db/write.ts'
import { requireValid } from './check.ts'
import { type Definition, definitionFields, isSameStructure } from './definition.ts'
import { definitionOf, type WorkflowRow, workflowKind, workflowVersions } from './model.ts'

const archive = (tx: Tx, row: WorkflowRow, { created_by, label = null }: Making) =>
  workflowVersions.insert(tx, {
    workflow_id: row.id,
    version: row.version,
    config: definitionOf(row) as never,
    label,
    created_by,
  })

/** Adds a workflow, whose definition has been checked, with its first version. */
export async function insertWorkflow(tx: Tx, values: Values<WorkflowRow>, making: Making): Promise<WorkflowRow> {
  const row = await workflowKind.insert(tx, { ...values, version: 1 })
  await archive(tx, row, making)
  return row
}

/** Writes changes of a workflow whose row the caller holds: another definition is the next version. */
export async function changeWorkflow(
  tx: Tx,
  stored: WorkflowRow,
  changes: Values<WorkflowRow>,
  making: Making,
): Promise<WorkflowRow> {
  const next = { ...stored, ...changes } as WorkflowRow
  if (isSameStructure(definitionOf(stored), definitionOf(next))) return workflowKind.update(tx, stored.id, changes)
  const row = await workflowKind.update(tx, stored.id, { ...changes, version: stored.version + 1 })
  await archive(tx, row, making)
  return row
}

/**
 * Writes the definition of an earlier version as the next one, unless it is what the workflow has.
 * @throws RESOURCE_NOT_FOUND, WORKFLOW_VALIDATION_FAILED, FORBIDDEN
 */
export async function restoreVersion(
  context: Pick<Context, 'tx' | 'services' | 'caller' | 'audit' | 'allow'> & { resource: WorkflowRow },
  number: number,
  label: string | undefined,
): Promise<WorkflowRow> {
  const at = { kind: workflowKind, archive: workflowVersions, number, label }
  return restoreArchived(context, at, async (stored, kept, making) => {
    const config = kept as Definition
    if (isSameStructure(definitionOf(stored), config)) return null
    await requireValid(context, stored.project_id, config, stored)
    return changeWorkflow(context.tx, stored, picked(config, definitionFields) as Values<WorkflowRow>, making)
  })
}
