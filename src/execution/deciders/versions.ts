import type { z } from 'zod'
import type { Values } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { parse } from '../../core/api/validate.ts'
import { type Making, restoreArchived } from '../../core/api/version-archive.ts'
import type { Tx } from '../../core/db/write.ts'
import { type DeciderRow, deciderKind } from './model.ts'
import { Questions } from './questions.ts'
import { deciderVersions } from './store.ts'

const archive = (tx: Tx, { id, version, questions }: DeciderRow, { created_by, label = null }: Making) =>
  deciderVersions.insert(tx, { decider_id: id, version, config: { questions }, label, created_by })

/** Adds a decider with its first version. */
export async function insertDecider(tx: Tx, values: Values<DeciderRow>, making: Making): Promise<DeciderRow> {
  const decider = await deciderKind.insert(tx, { ...values, version: 1 })
  await archive(tx, decider, making)
  return decider
}

/** Writes what changes of a decider whose row the caller holds: other questions are the next version, nothing else is. */
export async function changeDecider(
  tx: Tx,
  stored: DeciderRow,
  changes: Values<DeciderRow>,
  making: Making,
): Promise<DeciderRow> {
  if (changes.questions === undefined) return deciderKind.update(tx, stored.id, changes)
  // With the name, which its refusal says.
  const decider = await deciderKind.update(tx, stored.id, {
    name: stored.name,
    ...changes,
    version: stored.version + 1,
  })
  await archive(tx, decider, making)
  return decider
}

/**
 * Writes the questions of an earlier version as the next one, unless they are what is asked. Raises RESOURCE_NOT_FOUND,
 * VALIDATION_FAILED for questions that could not be written today.
 */
export async function restoreVersion(
  context: Pick<Context, 'tx' | 'caller' | 'audit'> & { resource: DeciderRow },
  number: number,
  label: string | undefined,
): Promise<DeciderRow> {
  const at = { kind: deciderKind, archive: deciderVersions, number, label }
  return restoreArchived(context, at, async (stored, config, making) => {
    const questions: z.output<typeof Questions> = parse(Questions, config.questions, 'questions')
    const changes = deciderKind.changes(stored, { ...stored, questions })
    return Object.keys(changes).length === 0 ? null : changeDecider(context.tx, stored, changes, making)
  })
}
