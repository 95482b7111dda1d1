import type { Values } from '../../core/api/kind.ts'
import { type Making, versionArchive } from '../../core/api/version-archive.ts'
import { announce } from '../../core/db/notified-cache.ts'
import type { Tx } from '../../core/db/write.ts'
import { guardrailChannel } from './live.ts'
import { type GuardrailRow, GuardrailVersion, guardrailKind } from './model.ts'

export const guardrailVersions = versionArchive({
  table: 'guardrail_versions',
  owner: 'guardrail_id',
  prefix: 'guard_ver',
  record: GuardrailVersion,
})

/** Adds a guardrail with its first version. */
export async function insertGuardrail(tx: Tx, values: Values<GuardrailRow>, making: Making): Promise<GuardrailRow> {
  const row = await guardrailKind.insert(tx, { ...values, version: 1 })
  await archive(tx, row, making)
  return row
}

/** Writes changes of a guardrail whose row the caller holds; another document makes a version. */
export async function changeGuardrail(
  tx: Tx,
  stored: GuardrailRow,
  changes: Values<GuardrailRow>,
  making: Making,
): Promise<GuardrailRow> {
  announce(tx, guardrailChannel, stored.id)
  if (changes.document === undefined) return guardrailKind.update(tx, stored.id, changes)
  const row = await guardrailKind.update(tx, stored.id, { ...changes, version: stored.version + 1 })
  await archive(tx, row, making)
  return row
}

const archive = (tx: Tx, { id, version, document }: GuardrailRow, { created_by, label = null }: Making) =>
  guardrailVersions.insert(tx, { guardrail_id: id, version, config: { document }, label, created_by })
