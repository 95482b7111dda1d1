import { picked, type Values } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { type Making, restoreArchived } from '../../core/api/version-archive.ts'
import type { Tx } from '../../core/db/write.ts'
import { requireValid } from './check.ts'
import { isSameStructure } from './definition.ts'
import {
  type Definition,
  definitionFields,
  type OrchestrationRow,
  orchestrationKind,
  orchestrationVersions,
} from './model.ts'

export const definitionOf = (row: OrchestrationRow): Definition => picked(row, definitionFields) as Definition

const archive = (tx: Tx, row: OrchestrationRow, { created_by, label = null }: Making) =>
  orchestrationVersions.insert(tx, {
    orchestration_id: row.id,
    version: row.version,
    config: definitionOf(row),
    label,
    created_by,
  })

/** Adds an orchestration, whose definition has been checked, with its first version. */
export async function insertOrchestration(
  tx: Tx,
  values: Values<OrchestrationRow>,
  making: Making,
): Promise<OrchestrationRow> {
  const row = await orchestrationKind.insert(tx, { ...values, version: 1 })
  await archive(tx, row, making)
  return row
}

/**
 * Writes the graph with which a module drives work of its own, as the version that the module says: a new orchestration, or
 * the next version of the one that it has. It has no routes.
 */
export async function putManaged(
  tx: Tx,
  id: string | null,
  values: Pick<OrchestrationRow, 'project_id' | 'name' | 'version'> & { managed_by: string; definition: Definition },
  making: Making,
): Promise<OrchestrationRow> {
  const { definition, ...named } = values
  const row =
    id === null
      ? await orchestrationKind.insert(tx, { ...named, description: null, ...definition })
      : await orchestrationKind.update(tx, id, { name: named.name, version: named.version, ...definition })
  await archive(tx, row, making)
  return row
}

/** Writes changes of an orchestration whose row the caller holds: a graph that runs otherwise is the next version. */
export async function changeOrchestration(
  tx: Tx,
  stored: OrchestrationRow,
  changes: Values<OrchestrationRow>,
  making: Making,
): Promise<OrchestrationRow> {
  if (isSameStructure(stored, { ...stored, ...changes })) return orchestrationKind.update(tx, stored.id, changes)
  const row = await orchestrationKind.update(tx, stored.id, { ...changes, version: stored.version + 1 })
  await archive(tx, row, making)
  return row
}

/**
 * Writes the graph of an earlier version as the next one, unless it is what the orchestration has.
 * @throws RESOURCE_NOT_FOUND, and what refuses a write
 */
export async function restoreVersion(
  context: Pick<Context, 'tx' | 'services' | 'allow' | 'caller' | 'audit'> & { resource: OrchestrationRow },
  number: number,
  label: string | undefined,
): Promise<OrchestrationRow> {
  const at = { kind: orchestrationKind, archive: orchestrationVersions, number, label }
  return restoreArchived(context, at, async (stored, kept, making) => {
    const config = kept as Definition
    if (isSameStructure(stored, config)) return null
    await requireValid(context, stored.project_id, config, stored)
    const changes = orchestrationKind.changes(stored, { ...stored, ...config })
    return changeOrchestration(context.tx, stored, changes, making)
  })
}
