import type { Services } from '#core/base/services.ts'
import { type SealedColumn, sealedColumns } from '#core/db/sealed.ts'
import { countByKey, lockForeignRows, writeSealed } from './store.ts'

const BATCH = 500
/** Attempts for rows that are locked by other transactions. */
const PASSES = 10

export type ReencryptCount = { table: string; column: string; kind: string; reencrypted: number; undecryptable: number }
export type KeyCount = { table: string; column: string; kind: string; key_id: string; current: boolean; count: number }

/**
 * Re-encrypts every value that is not sealed with the current key. Safe alongside live traffic: each batch of 500
 * unlocked rows is one transaction. Can be stopped and repeated at any time.
 * @param onProgress called after each batch with the counts of its column so far
 * @returns the counts per column, and the number of values that remain under other keys: undecryptable values, and rows
 * that stayed locked
 */
export async function reencryptSecrets(
  services: Pick<Services, 'write' | 'pool' | 'secrets'>,
  onProgress: (count: ReencryptCount) => void = () => {},
): Promise<{ counts: ReencryptCount[]; remaining: number }> {
  const counts: ReencryptCount[] = []
  for (const column of sealedColumns.all()) counts.push(await reencryptColumn(services, column, onProgress))
  const verified = await verifySecrets(services)
  return { counts, remaining: verified.reduce((sum, { current, count }) => (current ? sum : sum + count), 0) }
}

async function reencryptColumn(
  services: Pick<Services, 'write' | 'pool' | 'secrets'>,
  column: SealedColumn,
  onProgress: (count: ReencryptCount) => void,
): Promise<ReencryptCount> {
  const { secrets } = services
  const { table, kind } = column
  const total: ReencryptCount = { table, column: column.column, kind, reencrypted: 0, undecryptable: 0 }
  for (let pass = 0; pass < PASSES; pass++) {
    total.undecryptable = 0
    let after = ''
    for (;;) {
      const batch = await services.write(async tx => {
        const rows = await lockForeignRows(tx, column, secrets.keyId, after, BATCH)
        const resealed: { id: string; sealed: string }[] = []
        for (const row of rows) {
          const aad = { kind, id: row.id, project_id: row.project_id }
          const opened = secrets.open(row.sealed, aad)
          if (opened.ok) resealed.push({ id: row.id, sealed: secrets.seal(opened.value, aad) })
        }
        if (resealed.length > 0) await writeSealed(tx, column, resealed)
        return { last: rows.at(-1)?.id, resealed: resealed.length, undecryptable: rows.length - resealed.length }
      })
      total.reencrypted += batch.resealed
      total.undecryptable += batch.undecryptable
      if (batch.last === undefined) break
      onProgress({ ...total })
      after = batch.last
    }
    const remaining = (await countByKey(services.pool, column)).reduce(
      (sum, { key_id, count }) => (key_id === secrets.keyId ? sum : sum + count),
      0,
    )
    if (remaining <= total.undecryptable) break
    await new Promise(resolve => setTimeout(resolve, 200))
  }
  return total
}

/** Counts the values of every encrypted column per key, without opening them. */
export async function verifySecrets(services: Pick<Services, 'pool' | 'secrets'>): Promise<KeyCount[]> {
  const counts: KeyCount[] = []
  for (const column of sealedColumns.all())
    for (const { key_id, count } of await countByKey(services.pool, column))
      counts.push({
        table: column.table,
        column: column.column,
        kind: column.kind,
        key_id,
        current: key_id === services.secrets.keyId,
        count,
      })
  return counts
}
